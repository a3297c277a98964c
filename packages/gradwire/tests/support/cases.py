"""Many small cases as one test: pytest and its workers take a millisecond for each test, beside the test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps

import pytest

from gradwire.errors import add_note

Test = Callable[..., None]


def for_each(names: str, values: Iterable[object] | Mapping[str, object]) -> Callable[[Test], Test]:
    """Return a decorator as ``pytest.mark.parametrize``, whose cases are one test.

    The first case that fails ends it, and a note under its error says which one that was. Several names,
    ``"x, wanted"``, take tuples. A mapping's keys are the cases' names. All cases share the test's fixtures.
    """
    arguments = [name.strip() for name in names.split(",")]
    cases = list(values.items() if isinstance(values, Mapping) else ((str(value), value) for value in values))
    assert cases, f"there is no case of {names}"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        assert signature.parameters.keys() >= set(arguments), f"a test takes {names}"
        fixtures = [each for name, each in signature.parameters.items() if name not in arguments]

        @wraps(test)
        def run_all(*args: object, **given: object) -> None:
            for case, value in cases:
                parts = value if len(arguments) > 1 else (value,)
                assert isinstance(parts, tuple)
                try:
                    test(*args, **given, **dict(zip(arguments, parts, strict=True)))
                except pytest.skip.Exception as skipped:
                    raise AssertionError(f"{names} = {case} would skip the other cases, too") from skipped
                except BaseException as error:
                    add_note(error, f"where {names} = {case}")
                    raise

        run_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run_all

    return decorate
