"""What errors have in common: bases for whoever catches them, and values quoted in one short line."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import errors
from gradwire.errors import one_line, shown, suggestion
from gradwire.wire import OutOfStepError

CLASSES: list[Any] = [each for _, each in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", CLASSES)
def test_one_class_catches_them_all_and_a_warning_is_none(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.GradwireError) != issubclass(kind, Warning)
    assert kind.__doc__


def test_every_class_names_its_own_entry_and_others_that_of_their_base() -> None:
    entries = {kind: kind.docs for kind in CLASSES}
    assert len(set(entries.values())) == len(CLASSES)
    assert entries[errors.LinkError] == "troubleshooting.md#linkerror"
    assert errors.LinkTimeoutError("rank 1 is gone").docs == "troubleshooting.md#linktimeouterror"
    assert OutOfStepError.docs == errors.FrameError.docs
    assert errors.GradwireError.docs == "troubleshooting.md#by-error"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.SpecError, ValueError),
        (errors.TensorError, ValueError),
        (errors.StateError, ValueError),
        (errors.LinkTimeoutError, TimeoutError),
        (errors.LinkTimeoutError, errors.LinkError),
        (errors.AttachError, RuntimeError),
        (errors.MissingPackageError, ImportError),
        (errors.LossyWarning, UserWarning),
    ],
)
def test_who_knows_python_alone_catches_them_too(kind: type, builtin: type) -> None:
    assert issubclass(kind, builtin)


@given(st.one_of(st.text(), st.lists(st.integers()), st.binary(), st.floats()))
def test_a_value_is_shown_in_one_short_line(value: object) -> None:
    text = shown(value)
    assert len(text) <= 80
    assert "\n" not in text
    whole = " ".join(repr(value).split())
    assert text == whole if len(whole) <= 80 else text == f"{whole[:77]}..."


class _Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_what_has_no_repr_is_shown_by_its_type() -> None:
    assert shown(_Hostile()) == "a value of the type _Hostile"
    assert shown(10**5000) == "a value of the type int"


def test_a_copy_says_the_same_and_holds_no_frame() -> None:
    def fail() -> None:
        try:
            raise ConnectionResetError(104, "reset")
        except OSError as reason:
            raise errors.LinkTimeoutError("rank 1 is gone") from reason

    with pytest.raises(errors.LinkTimeoutError) as caught:
        fail()
    errors.add_note(caught.value, "in step 3")
    twin = errors.copied(caught.value)
    assert (type(twin), str(twin)) == (errors.LinkTimeoutError, "rank 1 is gone")
    assert isinstance(twin.__cause__, ConnectionResetError)
    assert twin.__cause__.errno == 104
    assert twin.__traceback__ is twin.__cause__.__traceback__ is None
    errors.add_note(twin, "elsewhere")
    assert caught.value.__notes__ == ["in step 3"]


def test_where_python_prints_no_notes_they_extend_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    error, system, number = errors.ExchangeError("rank 1 is gone"), OSError(104, "reset"), KeyError(3)
    for each in (error, system, number):
        errors.add_note(each, "in step 3")
    assert str(error) == "rank 1 is gone\nin step 3"
    assert (system.errno, str(system), str(number)) == (104, "[Errno 104] reset", "3")
    assert not hasattr(error, "__notes__")


def test_a_copy_of_a_class_that_wants_other_arguments_has_its_text() -> None:
    class OwnError(Exception):
        def __init__(self, rank: int) -> None:
            super().__init__(f"rank {rank} failed")

    class OddError(Exception):
        def __new__(cls, *words: str) -> OddError:
            if len(words) == 1:
                raise TypeError
            return super().__new__(cls, *words)

        def __init__(self, *words: str) -> None:
            super().__init__(words[0])

    assert str(errors.copied(MemoryError("no room"))) == "no room"
    assert str(errors.copied(FileNotFoundError(2, "none", "x"))) == "[Errno 2] none: 'x'"
    assert str(errors.copied(KeyError("x"))) == "'x'"
    twin = errors.copied(OwnError(3))
    assert (type(twin), str(twin)) == (OwnError, "rank 3 failed")
    assert str(errors.copied(OddError("x", "y"))) == "OddError: x"


@given(st.text(st.characters(codec=None)))
def test_one_line_holds_nothing_that_moves_a_terminal_and_all_that_can_be_read(text: str) -> None:
    told = one_line(text)
    assert told.isprintable()
    told.encode()
    assert one_line(told) == told
    assert text != told or text.isprintable()


def test_only_a_near_name_is_suggested() -> None:
    known = ["plan", "profile", "train"]
    assert suggestion("trane", known) == " (did you mean 'train'?)"
    assert suggestion("PLAN", known) == " (did you mean 'plan'?)"
    assert suggestion("fly", known) == suggestion("", known) == suggestion("plan", []) == ""
