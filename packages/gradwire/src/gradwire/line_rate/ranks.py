"""One rank of a benchmark: its links, collectives, and messages through the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gradwire.errors import JobError
from gradwire.launch.launched import is_launched, launched_rank
from gradwire.launch.local import Event, Options, RankContext, Task, run_joined, run_local
from gradwire.launch.rendezvous import gather, in_words, joined_group, wait_for
from gradwire.links import Link, ProcessGroupLink
from gradwire.links.throttle import throttled
from gradwire.machine import cores
from gradwire.units import check_link_rate

WORLDS = (2, 64)
_FAILED = "benchmark/failed"
"""The store's key for the message of a rank that has failed."""


class Ranks:
    """One rank of a benchmark, with its connections to the other ranks; created by ``met_ranks``."""

    def __init__(
        self, context: RankContext[Event], store: Store, group: dist.ProcessGroup, timeout_s: float
    ) -> None:
        self.rank, self.world, self.timeout_s = context.rank, context.world, timeout_s
        self._store, self._group = store, group

    def connect(self, rate: str | None) -> Link:
        """Return a link between all ranks, throttled to ``rate`` if given. The caller closes the link."""
        return throttled(ProcessGroupLink(self._group, timeout_s=self.timeout_s), rate)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return every rank's ``values`` (1-D, equal lengths) as rows. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} could not gather results", self.timeout_s):
            return gather(self._group, values)

    def barrier(self) -> None:
        """Wait until all ranks have called ``barrier``. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} waited for the other ranks", self.timeout_s):
            dist.barrier(self._group)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum ``tensor`` over the ranks with torch's all-reduce. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} in torch's all_reduce", self.timeout_s):
            dist.all_reduce(tensor, group=self._group)

    def say(self, word: str, text: str) -> None:
        """Publish a string to all ranks under the key ``word``. No key may be published twice."""
        self._store.set(word, text)

    def hear(self, word: str) -> str:
        """Return the text under the key ``word``; wait until it is set, or a rank fails (``LinkError``)."""
        with in_words(f"rank {self.rank} waited for its turn", self.timeout_s):
            wait_for(self._store, word, _FAILED)
            return self._store.get(word).decode()


@contextmanager
def met_ranks(context: RankContext[Event], timeout_s: float) -> Iterator[Ranks]:
    """Wait until all ranks have joined, yield this rank, with its share of threads; end with a barrier.

    If the block fails, the waits of the other ranks in ``hear`` end with an error.
    """
    torch.set_num_threads(max(1, cores() // context.ranks_here))
    store = context.join_store()
    with joined_group(store, context.rank, context.world, timeout_s) as group:
        ranks = Ranks(context, store, group, timeout_s)
        try:
            yield ranks
            ranks.barrier()
        except BaseException:
            with suppress(RuntimeError):  # the store's process may have ended
                ranks.say(_FAILED, f"rank {ranks.rank} has failed ({context.doing}); see its error")
            raise


def perform(task: Task[Options, Event], show: Callable[[Event], None]) -> None:
    """Run a task in local processes, or as a rank that a launcher has started."""
    if is_launched():
        run_joined(task, show)
    else:
        run_local(task, show)


def is_speaker() -> bool:
    """Return whether this process prints and saves results: rank 0, or the parent of local ranks."""
    return not is_launched() or launched_rank()[0] == 0


def check_network(workers: int, link: str | None, timeout_s: float) -> None:
    """Raise ``JobError`` or ``SpecError`` for an invalid number of ranks, link rate, or timeout."""
    low, high = WORLDS
    if is_launched() and workers < low:
        raise JobError(f"expected at least {low} ranks for a benchmark, got {workers}; start more ranks")
    if not low <= workers <= high:
        raise JobError(f"--workers: expected {low} to {high}, got {workers}; pass a number in this range")
    if not 1 <= timeout_s <= 86_400:
        raise JobError(
            f"--timeout: expected 1 to 86400 seconds, got {timeout_s:g}; pass a time in this range"
        )
    check_link_rate(link)
