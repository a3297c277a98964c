"""What errors have in common: bases for whoever catches them, and values quoted in one short line."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import errors
from gradwire.errors import shown

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", CLASSES)
def test_one_class_catches_them_all_and_a_warning_is_none(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.GradwireError) != issubclass(kind, Warning)
    assert kind.__doc__


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
