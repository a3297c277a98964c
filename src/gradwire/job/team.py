"""The processes of a job: ranks 0..p-1 are the workers, rank p is the server where a run has one.

Training goes over links; what the team says here beside it (barriers, sums, hashes) is never timed.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gradwire.job.options import JobOptions
from gradwire.job.runs import Run
from gradwire.launch.group import gather, in_words, wait_for


class Team:
    """One rank's membership of the default group, which the ranks have joined.

    All ranks make the same groups in the same order, the server too: for every run one that its link takes
    over, and one for the words beside it.
    """

    def __init__(self, store: Store, rank: int, options: JobOptions) -> None:
        self.rank, self.workers, self.timeout_s = rank, options.workers, options.timeout_s
        self._store = store
        limit = timedelta(seconds=options.timeout_s)
        with in_words(f"rank {rank} could not meet the other {options.world - 1} ranks", options.timeout_s):
            self._groups = {run: self._make_groups(run, limit) for run in options.runs}

    @property
    def is_server(self) -> bool:
        """Return whether this rank is the server."""
        return self.rank == self.workers

    def takes_part(self, run: Run) -> bool:
        """Return whether this rank has work in ``run``: the server idles while the others run a ring."""
        return run.method == "server" or not self.is_server

    def link_group(self, run: Run) -> tuple[dist.ProcessGroup, list[int]]:
        """Return the group of a run's link, and its global ranks in the link's order: a server is 0."""
        return self._groups[run][0], self._members(run)

    def barrier(self, run: Run) -> None:
        """Wait until all ranks of the run are here. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} waited for the others between two epochs", self.timeout_s):
            gather(self._words(run), torch.zeros(1))

    def gather(self, run: Run, values: torch.Tensor) -> torch.Tensor:
        """Return every rank's ``values`` (1-D, equal lengths), one row a rank. Raises ``LinkError``."""
        with in_words(f"rank {self.rank} collected results", self.timeout_s):
            return gather(self._words(run), values)

    def _members(self, run: Run) -> list[int]:
        server = [self.workers] if run.method == "server" else []
        return [*server, *range(self.workers)]

    def _make_groups(self, run: Run, limit: timedelta) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        members = sorted(self._members(run))
        return dist.new_group(members, timeout=limit), dist.new_group(members, timeout=limit)

    def _words(self, run: Run) -> dist.ProcessGroup:
        return self._groups[run][1]

    def announce(self, word: str) -> None:
        """Wake the ranks that ``wait_for`` this word."""
        self._store.set(word, "1")

    def wait_for(self, word: str) -> None:
        """Sleep until somebody announces ``word``, however long that takes: a run takes as long as it takes.

        If the team falls apart meanwhile the store goes with its host. Raises ``LinkError``.
        """
        with in_words(f"rank {self.rank} waited for its turn", self.timeout_s):
            wait_for(self._store, word)
