"""All exceptions of gradwire. A message says the expected and the actual value, and the remedy."""

LOSSY_LOGGER = "gradwire.lossy"
"""The name of the logger that gets every ``LossyWarning``, too."""


class GradwireError(Exception):
    """The base class of all errors that gradwire raises on purpose."""


class SpecError(GradwireError, ValueError):
    """The name or spec of a codec, algorithm, rate, or plan is invalid."""


class TensorError(GradwireError, ValueError):
    """A tensor has the wrong dtype, shape, layout, or device."""


class DeviceError(GradwireError, RuntimeError):
    """An accelerator was lost or has no memory left, or the host has no pinned memory left."""


class PayloadError(GradwireError, ValueError):
    """A payload is invalid: truncated, oversized, or altered."""


class FrameError(GradwireError):
    """A received frame failed validation: header, sequence, or checksum."""


class LinkError(GradwireError):
    """A link couldn't carry a frame, because the peer is gone or the transport failed."""


class LinkTimeoutError(LinkError, TimeoutError):
    """A peer didn't send or receive a frame within the link's timeout."""


class VersionError(GradwireError, ValueError):
    """A delta of weights starts from other weights than the receiver's; the sender must send a full copy."""


class StateError(GradwireError, ValueError):
    """A saved state belongs to another rank, world size, or model, or the states of replicas differ."""


class ExchangeError(GradwireError):
    """An exchange failed; the message names the rank, peer, and step, and ``__cause__`` holds the reason."""


class LossyError(GradwireError):
    """Encoding repeatedly loses most of a parameter's gradient, on the rank that the message names."""


class LossyWarning(UserWarning):
    """The warning that replaces ``LossyError`` if training isn't strict."""


class AttachError(GradwireError, RuntimeError):
    """A model can't take gradwire's hook: it isn't a DDP model, has another hook, or its ranks disagree."""


class MissingPackageError(GradwireError, ImportError):
    """An optional package isn't installed or doesn't load; the message names gradwire's extra for it."""


class DataError(GradwireError):
    """A data set is missing, incomplete, or damaged."""


class JobError(GradwireError):
    """A training job can't start or continue, because of its options, the rendezvous, or a dead worker."""


class TestbedError(GradwireError):
    """A testbed can't be created, or its command can't be started or supervised."""


class NicError(GradwireError):
    """A software NIC can't start, or one of its interfaces is gone."""


def copied(error: BaseException) -> BaseException:
    """Return a copy of an exception that holds no frame.

    The traceback of a raised exception keeps the local variables of all its callers alive, such as a model.
    An object that outlives a call holds a copy, and raises another copy each time.
    """
    try:
        # __reduce__ has the name of an OSError's file, too, which its args lack
        arguments: tuple[object, ...] = error.__reduce__()[1]  # type: ignore[assignment]
        twin = type(error).__new__(type(error), *arguments)
    except Exception:  # a third party's class may take other arguments
        twin = RuntimeError(f"{type(error).__name__}: {error}")
    else:
        twin.args = error.args  # MemoryError sets them only in its __init__
    twin.__dict__.update(error.__dict__)
    if "__notes__" in twin.__dict__:
        twin.__notes__ = [*twin.__notes__]
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
    """Return ``value`` as errors quote it: its ``repr`` in one line of at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a third party's repr may raise anything, and that of an int of 5000 digits does
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
