from __future__ import annotations

import time

import pytest

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch import rendezvous as group
from gradwire.launch.rendezvous import in_words
from support.store_host import served


def test_what_torch_raises_is_told_in_one_line() -> None:
    with pytest.raises(LinkError) as caught, in_words("asking all ranks", 30.0):
        raise RuntimeError("Connection reset by peer\nframe #0: a long story")
    assert str(caught.value) == (
        "asking all ranks: a peer has ended or is too slow (Connection reset by peer); see the other ranks' "
        "errors"
    )


def test_what_comes_after_the_timeout_is_told_as_one() -> None:
    def ask() -> None:
        with in_words("asking all ranks", 0.05):
            time.sleep(0.06)
            raise RuntimeError("Timed out waiting 50ms for recv operation to complete")

    with pytest.raises(LinkError, match=r"a peer has ended or is too slow \(nothing within 0\.05 s"):
        ask()


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(KeyError), in_words("asking all ranks", 1.0):
        raise KeyError("own")


@pytest.mark.processes
def test_a_word_is_not_waited_for_where_the_store_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (host, store):
        store.set("word", "")
        group.wait_for(store, "word")
        monkeypatch.setattr(group, "ANSWER_S", 0.3)
        host.halt()
        with pytest.raises(LinkTimeoutError, match=r"^torch's store at .* has not answered for 0\.3 s"):
            group.wait_for(store, "word")
