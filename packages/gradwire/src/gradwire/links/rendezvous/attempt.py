"""The prefix of a group's store that only the processes of this attempt share.

After a restart, ``torchrun`` may give ranks the store of the previous attempt, which contains the addresses
of dead processes. No number distinguishes the two attempts: each agent has its own
``TORCHELASTIC_RESTART_COUNT``, which may differ between hosts. Therefore, every rank publishes a random
token, and rank 0 answers each token.
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

from gradwire.errors import LinkError, LinkTimeoutError, no_progress, shown
from gradwire.launch.store import TimedStore, polls
from gradwire.links.rendezvous.endpoints import Endpoint
from gradwire.links.rendezvous.tls import Encryption
from gradwire.version import version

# All ranks of a group must run the same version of gradwire, because frames, plans, and states depend on it.

_LONGEST = 40
"""The largest number of characters of a version that errors show."""
_SILENT = "an older version"
"""The text, in errors, for the version of a rank that publishes no version."""


def joined(versions: Mapping[int, str]) -> str:
    """Return the versions in rank order, as text that every version of gradwire can read."""
    return "\n".join(versions[rank] for rank in sorted(versions))


def check_same_version(versions: str, names: Sequence[str], this: str, doing: str) -> None:
    """Raise ``LinkError`` unless all ranks run the same version.

    ``versions`` is rank 0's result of ``joined``, or "" if rank 0 runs an older version, which publishes
    none. ``this`` is the version of this process. Errors start with ``doing``.
    """
    each = versions.split("\n") if versions else []
    if len(each) not in (0, len(names)):
        raise LinkError(
            f"{doing}: expected the versions of {len(names)} ranks in torch's store, got {shown(versions)}; "
            "look for another program that writes to this store"
        )
    known = zip(names, each, strict=True) if each else [(names[0], ""), ("this rank", this)]
    ranks: dict[str, list[str]] = {}
    for name, version_of_rank in known:
        ranks.setdefault(version_of_rank[:_LONGEST] or _SILENT, []).append(name)
    if len(ranks) > 1:
        found = " and ".join(f"{each} on {', '.join(some)}" for each, some in ranks.items())
        raise LinkError(
            f"{doing}: expected the same version of gradwire on all ranks, got {found}; "
            "install the same version on all ranks"
        )


_LEAVE_S = 5.0
"""The longest delay of a version error, in which the other ranks can read the versions."""


class AbsentError(LinkTimeoutError):
    """An error for the ranks in ``ranks``, which did not join in time."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = ranks


@dataclass
class GroupAttempt:
    """One process's tokens for a group: its own, and the token that all ranks share, once known."""

    own: str = field(default_factory=lambda: secrets.token_hex(16))
    shared: str | None = None
    version: str = field(default_factory=version)


_attempts = weakref.WeakKeyDictionary[dist.ProcessGroup, GroupAttempt]()


def own_part(group: dist.ProcessGroup, store: Store, doing: str, timeout_s: float) -> Store:
    """Return the group's ``store`` with a prefix for this attempt. The first call waits for all ranks.

    Raises ``LinkError``, for example if ranks run different versions of gradwire, and ``AbsentError`` if
    ranks do not join in time.
    """
    attempt = _attempts.setdefault(group, GroupAttempt())
    names = [f"rank {each}" for each in dist.get_process_group_ranks(group)]
    token = shared_token(attempt, store, dist.get_rank(group), names, doing, timeout_s)
    return PrefixStore(f"gradwire/{token}", store)


def shared_token(
    attempt: GroupAttempt, store: Store, rank: int, names: Sequence[str], doing: str, timeout_s: float
) -> str:
    """Return the token that all ranks of this attempt share. Raises the errors of ``own_part``."""
    if attempt.shared is None and len(names) > 1:
        found = _Rendezvous(TimedStore(PrefixStore("gradwire", store), doing), attempt, rank, len(names))
        try:
            versions = found.run(time.monotonic() + timeout_s)
        except LinkError:
            raise
        except TimeoutError as error:
            absent = found.absent()
            text = absent_text([names[each] for each in absent])
            raise AbsentError(f"{doing}{text}: {no_progress(timeout_s)}", absent) from error
        check_same_version(versions, names, attempt.version, doing)
        attempt.shared = found.shared
    attempt.shared = attempt.shared or attempt.own
    return attempt.shared


def absent_text(names: Iterable[str]) -> str:
    """Return the text " (rank 1 and rank 2 did not join)", or "" without names."""
    text = " and ".join(names)
    return f" ({text} did not join)" if text else ""


class _Rendezvous:
    """One rank's side of the rendezvous of an attempt.

    Every rank publishes its own token, and rank 0 answers tokens until all ranks have acknowledged an answer.
    A rank publishes its version before its token, and rank 0 publishes all ranks' versions under the keys
    ``versions`` and ``all``. So ranks compare versions before they read anything else, because a different
    version may write a different format. A rank 0 of an older version publishes an empty value under ``all``,
    other ranks of an older version read only ``versions``, and still older ranks publish no version.
    """

    def __init__(self, store: TimedStore, attempt: GroupAttempt, rank: int, world: int) -> None:
        self._store, self._own, self._rank = store, attempt.own, rank
        self._others, self._version = range(1, world), attempt.version
        self._versions = {0: attempt.version}
        self.shared: str | None = self._own if rank == 0 else None

    def run(self, deadline: float) -> str:
        """Wait for all ranks, and return their versions as ``joined`` text. Raises ``TimeoutError``."""
        store = self._store
        if self._rank == 0:
            self._answer_all(deadline)
            versions = joined(self._versions)
            store.set(f"versions {self._own}", versions, deadline)
            store.set(f"all {self._own}", versions, deadline)
        else:
            store.set(f"version {self._own}", self._version, deadline)
            store.set(f"hello {self._rank}", self._own, deadline)
            (self.shared,) = store.get([f"welcome {self._own}"], deadline)
            store.set(f"here {self.shared} {self._rank}", "", deadline)
            (versions,) = store.get([f"all {self.shared}"], deadline)
            versions = versions or store.find(f"versions {self.shared}", deadline) or ""
        if versions != joined(dict.fromkeys([0, *self._others], self._version)):
            self._take_leave(deadline)
        return versions

    def _take_leave(self, deadline: float) -> None:
        """Wait until all ranks have read the versions: the store's host may exit after the error."""
        self._store.set(f"read {self.shared} {self._rank}", "", deadline)
        with suppress(TimeoutError, LinkError):  # the absent rank raises its own error
            latest = min(deadline, time.monotonic() + _LEAVE_S)
            self._store.wait([f"read {self.shared} {other}" for other in (0, *self._others)], latest)

    def absent(self) -> list[int]:
        """Return the ranks not known to have joined; a hello may be from a dead process."""
        now = time.monotonic()
        if self.shared is None:
            return [0, *(each for each in self._others if not self._store.has([f"hello {each}"], now))]
        gone = [each for each in self._others if not self._store.has([f"here {self.shared} {each}"], now)]
        return gone or [0]

    def _answer_all(self, deadline: float) -> None:
        """Answer every hello, including hellos that replace a dead process's hello."""
        answered: dict[int, str] = {}
        missing = set(self._others)
        for _ in polls(deadline):
            for rank in sorted(missing):
                if self._store.has([f"here {self._own} {rank}"], deadline):
                    missing.discard(rank)
                elif (token := self._store.find(f"hello {rank}", deadline)) and answered.get(rank) != token:
                    self._versions[rank] = self._store.find(f"version {token}", deadline) or ""
                    self._store.set(f"welcome {token}", self._own, deadline)
                    answered[rank] = token
            if not missing:
                return


# Either all ranks of a link encrypt or none do, and none do if NICs compress.

_MODES = ("in plain text", "with TLS")


def check_same_encryption(endpoint: Endpoint | None, name: str, encryption: Encryption | None) -> None:
    """Raise ``LinkError`` if this rank encrypts and the rank ``name`` doesn't, or the reverse."""
    if endpoint is not None and endpoint.encrypts != (encryption is not None):
        raise LinkError(
            f"expected the same encryption on all ranks, got {name} {_MODES[endpoint.encrypts]} and this "
            f"rank {_MODES[not endpoint.encrypts]}; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and "
            "GRADWIRE_TLS_CA for all ranks or for none"
        )


def refuse_marks(tos: int, rank: int, world: int) -> None:
    """Raise ``LinkError`` if ``tos`` marks connections, because NICs can't compress encrypted values."""
    if tos:
        raise LinkError(
            f"rank {rank} connecting with the {world} ranks of its group: expected a plan without offload, "
            "because NICs cannot compress with TLS, got one with offload; unset GRADWIRE_TLS_KEY, "
            "GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA, or omit offload"
        )
