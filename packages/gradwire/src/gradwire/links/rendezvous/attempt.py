"""The part of a group's store that only the processes of this attempt know.

After a restart ``torchrun`` may give ranks the store of the attempt before, with the addresses of dead
processes in it. No number distinguishes the two: ``TORCHELASTIC_RESTART_COUNT`` is each agent's own, and
hosts differ in it. So every rank puts a random token there, and rank 0 answers to that.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gradwire.errors import LinkError, LinkTimeoutError, shown
from gradwire.launch.store import TimedStore, pauses
from gradwire.links.rendezvous.endpoints import Endpoint
from gradwire.links.rendezvous.tls import Encryption
from gradwire.version import version

# All ranks of a group run the same version of gradwire: frames, plans, and states are one version's.

_LONGEST = 40
"""The characters of a version that errors repeat, at most."""
_SILENT = "an older version"
"""The version, in errors, of a rank that publishes none."""


def joined(versions: Mapping[int, str]) -> str:
    """Return the versions in the order of their ranks, as text that every version of gradwire can read."""
    return "\n".join(versions[rank] for rank in sorted(versions))


def check_same_version(versions: str, names: Sequence[str], this: str, doing: str) -> None:
    """Raise ``LinkError`` unless all ranks run the same version.

    Parameters
    ----------
    versions
        The text that rank 0 made with ``joined``; empty if rank 0 runs a gradwire that doesn't.
    names
        The names of the ranks in errors.
    this
        The version of this process.
    doing
        The beginning of errors: the caller and its purpose.
    """
    each = versions.split("\n") if versions else []
    if len(each) not in (0, len(names)):
        raise LinkError(
            f"{doing}: torch's store holds {shown(versions)} as the versions of {len(names)} ranks, which no "
            "rank of gradwire has written; find out which other program writes to that store"
        )
    known = zip(names, each, strict=True) if each else [(names[0], ""), ("this rank", this)]
    ranks: dict[str, list[str]] = {}
    for name, version_of_rank in known:
        ranks.setdefault(version_of_rank[:_LONGEST] or _SILENT, []).append(name)
    if len(ranks) > 1:
        found = " and ".join(f"{each} on {', '.join(some)}" for each, some in ranks.items())
        raise LinkError(
            f"{doing}: expected the same version of gradwire on all ranks, got {found}; "
            "install one version everywhere"
        )


_LEAVE_S = 5.0
"""The time that a rank waits, before it raises an error, for the others to learn of it."""


class AbsentError(LinkTimeoutError):
    """Ranks, ``ranks``, that did not come in time."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = ranks


@dataclass
class GroupAttempt:
    """One process's tokens for a group: its own, and the one that all ranks share, once it is known.

    ``version`` is that of this process's gradwire.
    """

    own: str = field(default_factory=lambda: secrets.token_hex(16))
    shared: str | None = None
    version: str = field(default_factory=version)


_attempts = weakref.WeakKeyDictionary[dist.ProcessGroup, GroupAttempt]()


def own_part(group: dist.ProcessGroup, store: Store, doing: str, timeout_s: float) -> Store:
    """Return the part of the group's ``store`` for this attempt's ranks; the first call waits for them.

    Raises ``LinkError``, also if their versions of gradwire differ, and ``AbsentError`` if ranks do not come
    in time.
    """
    attempt = _attempts.setdefault(group, GroupAttempt())
    names = [f"rank {each}" for each in dist.get_process_group_ranks(group)]
    token = shared_token(attempt, store, dist.get_rank(group), names, doing, timeout_s)
    return PrefixStore(f"gradwire/{token}", store)


def shared_token(
    attempt: GroupAttempt, store: Store, rank: int, names: Sequence[str], doing: str, timeout_s: float
) -> str:
    """Return the token that all ranks of this attempt share, rank 0's own. Raises as ``own_part`` does.

    ``names`` are the names of the ranks in errors.
    """
    if attempt.shared is None and len(names) > 1:
        found = _Rendezvous(TimedStore(PrefixStore("gradwire", store), doing), attempt, rank, len(names))
        try:
            versions = found.run(time.monotonic() + timeout_s)
        except LinkError:
            raise
        except TimeoutError as error:
            absent = found.absent()
            text = did_not_come([names[each] for each in absent])
            raise AbsentError(f"{doing}{text}: nothing happened within {timeout_s:g} s", absent) from error
        check_same_version(versions, names, attempt.version, doing)
        attempt.shared = found.shared
    attempt.shared = attempt.shared or attempt.own
    return attempt.shared


def did_not_come(names: Iterable[str]) -> str:
    """Return " (rank 1 and rank 2 did not come)", or nothing without names."""
    text = " and ".join(names)
    return f" ({text} did not come)" if text else ""


class _Rendezvous:
    """One rank's side of the rendezvous of an attempt.

    All ranks publish a token of their own; rank 0 answers, until each rank has acknowledged the answer. A
    rank publishes its version before its token, and rank 0 all versions before the key that says that all are
    here. So ranks compare versions before they read anything else, whose form may be another version's.
    """

    def __init__(self, store: TimedStore, attempt: GroupAttempt, rank: int, world: int) -> None:
        self._store, self._own, self._rank = store, attempt.own, rank
        self._others = range(1, world)
        self._versions = {0: attempt.version}
        self._version = attempt.version
        self.shared: str | None = self._own if rank == 0 else None

    def run(self, deadline: float) -> str:
        """Return all ranks' versions, as ``joined`` writes them, when all are here.

        Raises ``TimeoutError``, and ``LinkError`` if the store fails.
        """
        store = self._store
        if self._rank == 0:
            self._answer_all(deadline)
            versions = joined(self._versions)
            store.set(f"versions {self._own}", versions, deadline)
            store.set(f"all {self._own}", "", deadline)
        else:
            store.set(f"version {self._own}", self._version, deadline)
            store.set(f"hello {self._rank}", self._own, deadline)
            store.wait([f"welcome {self._own}"], deadline)
            self.shared = store.get(f"welcome {self._own}", deadline)
            store.set(f"here {self.shared} {self._rank}", "", deadline)
            store.wait([f"all {self.shared}"], deadline)
            versions = self._get(f"versions {self.shared}", deadline)
        if versions != joined(dict.fromkeys([0, *self._others], self._version)):
            self._take_leave(deadline)
        return versions

    def _get(self, key: str, deadline: float) -> str:
        """Return the value of ``key``; nothing if an older gradwire runs there, which doesn't publish it."""
        return self._store.get(key, deadline) if self._store.has([key], deadline) else ""

    def _take_leave(self, deadline: float) -> None:
        """Wait until all have read the versions, because the process that serves the store may end then."""
        self._store.set(f"read {self.shared} {self._rank}", "", deadline)
        with suppress(TimeoutError, LinkError):  # that rank has its own error
            latest = min(deadline, time.monotonic() + _LEAVE_S)
            self._store.wait([f"read {self.shared} {other}" for other in (0, *self._others)], latest)

    def absent(self) -> list[int]:
        """Return the ranks that have not come, as far as this one knows: a hello may be a dead process's."""
        now = time.monotonic()
        if self.shared is None:
            return [0, *(each for each in self._others if not self._store.has([f"hello {each}"], now))]
        gone = [each for each in self._others if not self._store.has([f"here {self.shared} {each}"], now)]
        return gone or [0]

    def _answer_all(self, deadline: float) -> None:
        """Answer every hello, also one that replaces a dead process's."""
        answered: dict[int, str] = {}
        missing = set(self._others)
        for pause in pauses(deadline):
            for rank in sorted(missing):
                if self._store.has([f"here {self._own} {rank}"], deadline):
                    missing.discard(rank)
                elif self._store.has([f"hello {rank}"], deadline):
                    token = self._store.get(f"hello {rank}", deadline)
                    if answered.get(rank) != token:
                        self._versions[rank] = self._get(f"version {token}", deadline)
                        self._store.set(f"welcome {token}", self._own, deadline)
                        answered[rank] = token
            if not missing:
                return
            time.sleep(pause)


# Either all ranks of a link encrypt or none, and none where NICs are to compress.

_MODES = ("in plain text", "with TLS")


def check_same_encryption(endpoint: Endpoint | None, name: str, encryption: Encryption | None) -> None:
    """Raise ``LinkError`` if this rank encrypts and the one called ``name`` doesn't, or the reverse."""
    if endpoint is not None and endpoint.encrypts != (encryption is not None):
        raise LinkError(
            f"by the store, {name} connects {_MODES[endpoint.encrypts]}, but this rank "
            f"{_MODES[not endpoint.encrypts]}; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA "
            "for all ranks or for none"
        )


def refuse_marks(tos: int, rank: int, world: int) -> None:
    """Raise ``LinkError`` if values shall travel on connections marked with ``tos``, despite TLS."""
    if tos:
        raise LinkError(
            f"rank {rank} connecting with the {world} ranks of its group: a plan with offload lets NICs "
            "compress values, which they cannot do with TLS; unset GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and "
            "GRADWIRE_TLS_CA, or leave out offload"
        )
