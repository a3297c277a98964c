"""What ranks hear of each other before they attach, when the store holds something else, or is silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gradwire.errors import AttachError, LinkError
from gradwire.links.rendezvous import attempt
from gradwire.sync import group as sync_group
from support.store_host import served

RunProcesses = Callable[..., list[Any]]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for a group of two, of which this is rank 1."""

    class Group:
        pass

    monkeypatch.setattr(dist, "get_rank", lambda *_: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0, 1])
    return Group()


@pytest.mark.parametrize("text", ["", "rubbish", "[1]", '{"plan": 3}', "\xff"])
def test_facts_that_no_rank_has_told_are_an_error_that_says_so(
    text: str, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HashStore()
    store.set("attach 0/facts 0", text)
    monkeypatch.setattr(sync_group, "store_of", lambda _: store)
    monkeypatch.setattr(sync_group, "own_part", lambda *_: store)
    with pytest.raises(
        AttachError, match=r"^expected gradwire's facts under 'facts 0' in torch's store, got "
    ):
        sync_group.agree(group, {"plan": "this"}, 5.0)


@pytest.mark.processes
def test_a_store_that_does_not_answer_is_an_error_in_time(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as (host, store):
        monkeypatch.setattr(sync_group, "store_of", lambda _: store)
        host.halt()
        for _ in range(2):  # another call, too
            started = time.monotonic()
            with pytest.raises(AttachError) as caught:
                sync_group.agree(group, {}, 0.5)
            assert time.monotonic() - started < 5
            assert str(caught.value).startswith(
                "rank 1 attaching with the 2 ranks of the model's group: torch's store at 127.0.0.1:"
            )
            assert isinstance(caught.value.__cause__, LinkError)
        assert attempt._attempts[group].shared is None
