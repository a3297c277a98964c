from __future__ import annotations

import pytest

from gradwire import _native
from gradwire.errors import SpecError


@pytest.mark.parametrize("asked", ["0", "-1", "1_0", "two", "\u00b2", "10000", "99999999999", ""])
def test_a_number_of_threads_that_cannot_be_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", asked)
    with pytest.raises(SpecError, match="GRADWIRE_THREADS: expected a whole number from 1 to 9999"):
        _native.threads()


def test_the_number_of_threads_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", "12")
    assert _native.threads() == 12
