"""Ranks say words to each other through a store that they share."""

from __future__ import annotations

import pytest
from torch._C._distributed_c10d import HashStore, Store

from gradwire.doctor.ranks import Words
from gradwire.errors import LinkError


class Gone(Store):
    """A store whose host has ended."""

    def set(self, key: str, value: object) -> None:  # noqa: ARG002
        raise RuntimeError("Broken pipe")

    def wait(self, *_: object) -> None:
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize("value", [None, 3, {"a": [1.5, "é"]}, ""])
def test_what_one_says_another_hears(value: object) -> None:
    store = HashStore()
    Words(store).say("card 1", value)
    assert Words(store).hear("card 1", 1.0) == value


def test_words_do_not_meet_others_in_the_store() -> None:
    store = HashStore()
    store.set("card", "3")
    with pytest.raises(LinkError) as caught:
        Words(store).hear("card", 0.2)
    assert str(caught.value) == "waiting for 'card': no value within 0.2 s"


def test_a_store_that_is_gone_is_told() -> None:
    with pytest.raises(LinkError, match=r"^waiting for 'x': the process that serves the .* store has ended$"):
        Words(Gone()).hear("x", 1.0)
    with pytest.raises(LinkError, match=r"^the process that serves the ranks' store has ended$"):
        Words(Gone()).say("x", 1)
