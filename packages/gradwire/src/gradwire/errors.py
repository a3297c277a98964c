"""All exceptions of gradwire. A message states the expected and the actual value, and the remedy."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, ClassVar, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = "troubleshooting.md"
"""The page of the documentation with an entry for each class, under the class's name in lowercase."""
LOSSY_LOGGER = "gradwire.lossy"
"""The name of the logger that also receives every ``LossyWarning``."""


class GradwireError(Exception):
    """The base class of all errors that gradwire raises on purpose; ``docs`` links to its documentation."""

    docs: ClassVar[str] = f"{PAGE}#by-error"

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            cls.docs = f"{PAGE}#{cls.__name__.lower()}"


class SpecError(GradwireError, ValueError):
    """An error for an invalid codec, algorithm, rate, plan, or other argument."""


class TensorError(GradwireError, ValueError):
    """An error for a tensor with the wrong dtype, shape, layout, or device."""


class DeviceError(GradwireError, RuntimeError):
    """An error for a lost accelerator, or for exhausted device memory or pinned memory."""


class PayloadError(GradwireError, ValueError):
    """An error for an invalid payload: truncated, oversized, or altered."""


class FrameError(GradwireError):
    """An error for a received frame with an invalid header, sequence number, or checksum."""


class LinkError(GradwireError):
    """An error for a link that couldn't carry a frame: the peer is gone or the transport failed."""


class LinkTimeoutError(LinkError, TimeoutError):
    """An error for a peer that didn't send or receive a frame within the link's timeout."""


def no_progress(timeout_s: float) -> str:
    """Return the reason for a ``LinkTimeoutError``, with its remedy; ``timeout_s`` is in seconds."""
    return f"no progress within {timeout_s:g} s; check that all ranks run, or use a longer timeout_s"


class VersionError(GradwireError, ValueError):
    """An error for a weight delta that doesn't fit the receiver's version; the remedy is a full copy."""


class StateError(GradwireError, ValueError):
    """An error for a saved state of a different rank, world size, or model, or for replicas that differ."""


class ExchangeError(GradwireError):
    """An error for a failed exchange, with rank, peer, and step. ``__cause__`` holds the reason."""


class LossyError(GradwireError):
    """An error for a parameter whose encoding error was repeatedly too large; the message names the rank."""


class LossyWarning(UserWarning):
    """The warning that replaces ``LossyError`` unless training is strict."""

    docs: ClassVar[str] = f"{PAGE}#lossywarning"


class AttachError(GradwireError, RuntimeError):
    """An error for a model that can't use gradwire's hook, or whose ranks disagree."""


class MissingPackageError(GradwireError, ImportError):
    """An error for an optional package that can't be imported, with the extra to install in the message."""


class DataError(GradwireError):
    """An error for a missing, incomplete, or damaged data set."""


class JobError(GradwireError):
    """An error for a job that can't start or continue: its options, the rendezvous, or a dead worker."""


class TestbedError(GradwireError):
    """An error for a testbed that can't be created, or whose command can't be started or supervised."""


class NicError(GradwireError):
    """An error for a software NIC that can't start, or that lost an interface."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception; tracebacks print notes below the exception's message.

    Python 3.10 prints no notes, so the note becomes another line of the message, if the message is text.
    """
    if sys.version_info >= (3, 11):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])


def copied(error: BaseException) -> BaseException:
    """Return a copy of an exception without its traceback, for an object that outlives a call.

    The traceback of a raised exception keeps the local variables of all its callers alive, such as a model.
    """
    try:
        # __reduce__ includes the file name of an OSError, which args lacks
        arguments: tuple[object, ...] = error.__reduce__()[1]  # type: ignore[assignment]
        twin = type(error).__new__(type(error), *arguments)
    except Exception:  # the constructor of a third party's class may differ
        twin = RuntimeError(f"{type(error).__name__}: {error}")
    else:
        twin.args = error.args  # MemoryError sets args only in its __init__
    twin.__dict__.update(error.__dict__)
    if "__notes__" in twin.__dict__:
        twin.__dict__["__notes__"] = [*twin.__dict__["__notes__"]]
    twin.__cause__ = None if error.__cause__ is None else copied(error.__cause__)
    twin.__context__ = None if error.__context__ is None else copied(error.__context__)
    twin.__suppress_context__ = error.__suppress_context__
    return twin


def one_line(text: str) -> str:
    r"""Return ``text`` on one line: control characters and lone surrogates become escapes.

    Examples
    --------
    >>> one_line("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def shown(value: object) -> str:
    """Return ``value`` quoted for errors: its ``repr`` on one line of at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a third party's repr may raise anything, and an int of 5000 digits raises ValueError
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def refuse(expected: str, got: object, remedy: str) -> NoReturn:
    """Raise the ``SpecError`` for an invalid value."""
    raise SpecError(f"expected {expected}, got {shown(got)}; {remedy}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'NAME'?)"`` for the known name nearest to ``word``; ``""`` if no name is near.

    Examples
    --------
    >>> suggestion("trane", ["plan", "train"])
    " (did you mean 'train'?)"
    >>> suggestion("xyz", ["plan", "train"]), suggestion("--port", ["--host"])
    ('', '')
    """
    plain = {name.lstrip("-"): name for name in known}  # without dashes, which make all options similar
    near = difflib.get_close_matches(word.lower().lstrip("-"), plain, n=1)
    return f" (did you mean {plain[near[0]]!r}?)" if near else ""
