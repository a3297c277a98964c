"""One rank among those of a benchmark: its link, and what is said beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


class Ranks:
    """One rank's membership; ``met_ranks`` makes it."""

    def __init__(
        self, context: RankContext[Event], store: Store, group: dist.ProcessGroup, timeout_s: float
    ) -> None:
        self.rank, self.world, self.timeout_s = context.rank, context.world, timeout_s
        self._store, self._group = store, group

    def connect(self, rate: str | None) -> Link:
        """Return a link between all ranks, throttled to ``rate`` where one is given; close it."""
        return throttled(ProcessGroupLink(self._group, timeout_s=self.timeout_s), rate)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return every rank's ``values`` (1-D, equal lengths), one row a rank. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} collected figures", self.timeout_s):
            return gather(self._group, values)

    def barrier(self) -> None:
        """Wait until all ranks are here. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} waited for the others", self.timeout_s):
            dist.barrier(self._group)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum ``tensor`` over the ranks with PyTorch's own all-reduce. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} in torch's all_reduce", self.timeout_s):
            dist.all_reduce(tensor, group=self._group)

    def say(self, word: str, text: str) -> None:
        """Let every rank know a text, once, under a word."""
        self._store.set(word, text)

    def hear(self, word: str) -> str:
        """Sleep until somebody has said ``word``, however long that takes. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} waited for its turn", self.timeout_s):
            wait_for(self._store, word)
            return self._store.get(word).decode()


@contextmanager
def met_ranks(context: RankContext[Event], timeout_s: float) -> Iterator[Ranks]:
    """Meet the other ranks, share the cores with those of this machine, and leave together."""
    torch.set_num_threads(max(1, cores() // context.ranks_here))
    store = context.join_store()
    with joined_group(store, context.rank, context.world, timeout_s) as group:
        ranks = Ranks(context, store, group, timeout_s)
        yield ranks
        ranks.barrier()


def perform(task: Task[Options, Event], show: Callable[[Event], None]) -> None:
    """Do a task in local processes, or as one of the ranks that a launcher has started."""
    if is_launched():
        run_joined(task, show)
    else:
        run_local(task, show)


def is_speaker() -> bool:
    """Return whether this process shows and keeps results: rank 0, or the parent of local ranks."""
    return not is_launched() or launched_rank()[0] == 0


def check_network(workers: int, link: str | None, timeout_s: float) -> None:
    """Raise ``JobError`` or ``SpecError`` for what cannot be started."""
    low, high = WORLDS
    if is_launched() and workers < low:
        raise JobError(f"a benchmark needs at least {low} ranks, but {workers} was started; start more")
    if not low <= workers <= high:
        raise JobError(f"--workers must be {low} to {high}, but is {workers}")
    if not 1 <= timeout_s <= 86_400:
        raise JobError(f"--timeout must be 1 to 86400 (seconds), but is {timeout_s:g}")
    check_link_rate(link)
