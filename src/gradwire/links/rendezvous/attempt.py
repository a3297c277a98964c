"""A part of a group's store that only the processes of this attempt know, whatever earlier ones have left.

After a restart ``torchrun`` may let ranks meet at the store of the attempt before, with the addresses of dead
processes in it. No number tells the two apart: ``TORCHELASTIC_RESTART_COUNT`` is each agent's own, and hosts
differ in it. So every rank puts a word there that nobody can have put before, and rank 0 answers to that.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch.store import TimedStore, pauses


class AbsentError(LinkTimeoutError):
    """Some ranks did not come."""

    ranks: Sequence[int] = ()


@dataclass
class Attempt:
    """What one process keeps for a group: its own word, and the one that all ranks share once it is known."""

    own: str = field(default_factory=lambda: secrets.token_hex(16))
    shared: str | None = None


_attempts = weakref.WeakKeyDictionary[dist.ProcessGroup, Attempt]()


def own_part(group: dist.ProcessGroup, store: Store, doing: str, timeout_s: float) -> Store:
    """Return a part of ``store``, the group's, for the ranks of this attempt; the first call is a meeting.

    Raises ``LinkError``; ``AbsentError`` where ranks do not come in time.
    """
    attempt = _attempts.setdefault(group, Attempt())
    word = shared_word(attempt, store, dist.get_rank(group), dist.get_world_size(group), doing, timeout_s)
    return PrefixStore(f"gradwire/{word}", store)


def shared_word(attempt: Attempt, store: Store, rank: int, world: int, doing: str, timeout_s: float) -> str:
    """Return the word of this attempt, the same on all ranks: rank 0's own. Raises what ``own_part`` does."""
    if attempt.shared is None and world > 1:
        meeting = _Meeting(TimedStore(PrefixStore("gradwire", store), doing), attempt.own, rank, world)
        try:
            meeting.hold(time.monotonic() + timeout_s)
        except LinkError:
            raise
        except TimeoutError as error:
            absent = meeting.absent()
            late = AbsentError(f"{doing}{did_not_come(absent)}: nothing happened within {timeout_s:g} s")
            late.ranks = absent
            raise late from error
        attempt.shared = meeting.shared
    attempt.shared = attempt.shared or attempt.own
    return attempt.shared


def did_not_come(ranks: Iterable[int]) -> str:
    """Return " (rank 1 and rank 2 did not come)", nothing where there are none."""
    names = " and ".join(f"rank {rank}" for rank in ranks)
    return f" ({names} did not come)" if names else ""


class _Meeting:
    """All ranks say hello with a word of their own; rank 0 answers, until each has said that it is here."""

    def __init__(self, words: TimedStore, own: str, rank: int, world: int) -> None:
        self._words, self._own, self._rank = words, own, rank
        self._others = range(1, world)
        self.shared: str | None = own if rank == 0 else None

    def hold(self, deadline: float) -> None:
        """Return when all are here. Raises ``TimeoutError``, and ``LinkError`` for the store's sake."""
        words = self._words
        if self._rank == 0:
            self._welcome(deadline)
            words.set(f"all {self._own}", "", deadline)
            return
        words.set(f"hello {self._rank}", self._own, deadline)
        words.wait([f"welcome {self._own}"], deadline)
        self.shared = words.get(f"welcome {self._own}", deadline)
        words.set(f"here {self.shared} {self._rank}", "", deadline)
        words.wait([f"all {self.shared}"], deadline)

    def absent(self) -> list[int]:
        """Return who has not come, as far as this rank can tell: a hello may be a dead process's."""
        now = time.monotonic()
        if self.shared is None:
            return [0, *(each for each in self._others if not self._words.has([f"hello {each}"], now))]
        gone = [each for each in self._others if not self._words.has([f"here {self.shared} {each}"], now)]
        return gone or [0]

    def _welcome(self, deadline: float) -> None:
        """Answer every hello, also those whose place a dead process's word holds at first."""
        answered: dict[int, str] = {}
        missing = set(self._others)
        for pause in pauses(deadline):
            for rank in sorted(missing):
                if self._words.has([f"here {self._own} {rank}"], deadline):
                    missing.discard(rank)
                elif self._words.has([f"hello {rank}"], deadline):
                    said = self._words.get(f"hello {rank}", deadline)
                    if answered.get(rank) != said:
                        self._words.set(f"welcome {said}", self._own, deadline)
                        answered[rank] = said
            if not missing:
                return
            time.sleep(pause)
