"""A network as frozen data: rates, latency, groups behind shared uplinks, slow and late ranks.

A quantity that may differ between ranks is one number for all ranks, or a tuple with a number for each rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gradwire.collectives import Collective
from gradwire.deferred import np
from gradwire.errors import SpecError
from gradwire.fields import ABOVE_ZERO, Kind, Source, anything, of, optional, real, whole
from gradwire.records import read_object
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma

if TYPE_CHECKING:  # simulate imports NumPy, which would delay commands' --help
    from gradwire.timing.simulate import Simulation, Wires

PerRank = float | tuple[float, ...]
"""One number for all ranks (or groups), or one number for each rank (or group)."""
_SOURCE = Source("a network", "see gradwire_lab.closed_forms.Network")
T = TypeVar("T")


@dataclass(frozen=True)
class Groups:
    """Ranks in groups (hosts, racks, sites), each behind an uplink that its ranks share.

    Raises ``SpecError`` if a group isn't a whole number from 0 up, or a rate or latency is invalid.

    Parameters
    ----------
    of
        The group of every rank, counted from 0.
    uplink_nbytes_per_s
        The rate out of a group and into the group, in bytes per second, both at the same time.
    latency_s
        The latency of a message between two groups in seconds, added to the network's.
    """

    of: tuple[int, ...]
    uplink_nbytes_per_s: PerRank
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        of = tuple(self.of) if isinstance(self.of, Sequence) else ()
        if not of or not all(type(group) is int and group >= 0 for group in of):
            raise SpecError(
                f"expected groups as whole numbers of at least 0, one for each rank, got {self.of!r}; "
                "pass the group of every rank"
            )
        object.__setattr__(self, "of", of)
        _settle_each(self, "uplink_nbytes_per_s", self.count, "groups", real(ABOVE_ZERO))
        _SOURCE.check(self, latency_s=real(0.0))

    @property
    def count(self) -> int:
        """The number of groups."""
        return max(self.of) + 1

    @classmethod
    def blocks(cls, world: int, size: int, uplink_nbytes_per_s: PerRank, latency_s: float = 0.0) -> Groups:
        """Return groups of ``size`` neighbouring ranks each, placed in the order of the topology."""
        _SOURCE.read(size, whole(1), "size")
        return cls(tuple(rank // size for rank in range(world)), uplink_nbytes_per_s, latency_s)

    @classmethod
    def dealt(cls, world: int, count: int, uplink_nbytes_per_s: PerRank, latency_s: float = 0.0) -> Groups:
        """Return ``count`` groups to which ranks are assigned in turn. Neighbours are in different groups."""
        _SOURCE.read(count, whole(1), "count")
        return cls(tuple(rank % count for rank in range(world)), uplink_nbytes_per_s, latency_s)


@dataclass(frozen=True)
class Network:
    """The network between ``world`` ranks, and the rate of their additions.

    Raises ``SpecError`` for invalid numbers, and for tuples whose length isn't the number of ranks.

    Parameters
    ----------
    world
        The number of ranks.
    send_nbytes_per_s, recv_nbytes_per_s
        The rate out of and into each rank in bytes per second, both at the same time. A message moves at the
        lower of the rates at its two ends.
    latency_s
        The latency of every message in seconds.
    reduce_s_per_nbyte
        The seconds to add a received byte of float32.
    start_s
        The time at which each rank starts the all-reduce, in seconds.
    groups
        Shared uplinks, or None for a network whose core is never the bottleneck.
    """

    world: int
    send_nbytes_per_s: PerRank
    recv_nbytes_per_s: PerRank
    latency_s: float = 0.0
    reduce_s_per_nbyte: PerRank = 0.0
    start_s: PerRank = 0.0
    groups: Groups | None = None

    def __post_init__(self) -> None:
        _SOURCE.check(self, world=whole(1), latency_s=real(0.0))
        for name in ("send_nbytes_per_s", "recv_nbytes_per_s"):
            _settle_each(self, name, self.world, "ranks", real(ABOVE_ZERO))
        for name in ("reduce_s_per_nbyte", "start_s"):
            _settle_each(self, name, self.world, "ranks", real(0.0))
        if self.groups is not None and len(self.groups.of) != self.world:
            raise SpecError(
                f"expected a group for each of {self.world} ranks, got {len(self.groups.of)} in groups.of; "
                "pass a group for every rank"
            )

    @classmethod
    def uniform(cls, world: int, link: AlphaBetaGamma, groups: Groups | None = None) -> Network:
        """Return a network of equal ranks. Raises ``SpecError`` if beta is 0."""
        if link.beta_s_per_nbyte == 0:
            raise SpecError("expected beta above 0 seconds per byte, got 0; pass the inverse of the rate")
        rate = 1 / link.beta_s_per_nbyte
        return cls(world, rate, rate, link.alpha_s, link.gamma_s_per_nbyte, groups=groups)

    def delayed(self, rank: int, by_s: float) -> Network:
        """Return a copy of the network in which ``rank`` starts ``by_s`` seconds later."""
        self._check_rank(rank)
        start = list(self.per_rank(self.start_s))
        start[rank] += by_s
        return replace(self, start_s=tuple(start))

    def slowed(self, rank: int, factor: float) -> Network:
        """Return a copy in which ``rank`` sends, receives, and adds at ``1 / factor`` of its rates."""
        self._check_rank(rank)
        _SOURCE.read(factor, real(ABOVE_ZERO), "factor")
        changed: dict[str, Any] = {}
        for name, scale in (
            ("send_nbytes_per_s", 1 / factor),
            ("recv_nbytes_per_s", 1 / factor),
            ("reduce_s_per_nbyte", factor),
        ):
            values = list(self.per_rank(getattr(self, name)))
            values[rank] *= scale
            changed[name] = tuple(values)
        return replace(self, **changed)

    def per_rank(self, value: PerRank) -> tuple[float, ...]:
        """Return ``value`` as a tuple with one number per rank."""
        return value if isinstance(value, tuple) else (value,) * self.world

    def simulate(self, collective: Collective, nbytes: float, *, ratio: float = 1.0) -> Simulation:
        """Simulate an all-reduce of ``nbytes`` bytes of float32 per rank. See ``timing.simulate``.

        ``ratio`` is the codec's compression ratio.
        """
        from gradwire.timing.simulate import simulate

        return simulate(
            collective,
            self.wires(),
            nbytes,
            ratio=ratio,
            reduce_s_per_nbyte=np.array(self.per_rank(self.reduce_s_per_nbyte)),
            start_s=np.array(self.per_rank(self.start_s)),
        )

    def wires(self) -> Wires:
        """Return the rates and latencies as arrays."""
        from gradwire.timing.simulate import Wires

        groups = self.groups or Groups((0,) * self.world, 1.0)
        return Wires(
            np.array(self.per_rank(self.send_nbytes_per_s), dtype=np.float64),
            np.array(self.per_rank(self.recv_nbytes_per_s), dtype=np.float64),
            self.latency_s,
            np.array(groups.of, dtype=np.intp),
            np.full(groups.count, groups.uplink_nbytes_per_s, dtype=np.float64),
            groups.latency_s,
        )

    def _check_rank(self, rank: int) -> None:
        if rank not in range(self.world):
            raise SpecError(
                f"expected a rank from 0 to {self.world - 1}, got {rank!r}; pass a rank of this network"
            )

    def to_json(self) -> str:
        """Return the network as a JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Network:
        """Parse the result of ``to_json``. Missing fields have their defaults. Raises ``SpecError``."""
        return _SOURCE.read(read_object(text, "a network"), _kind(cls, groups=optional(_kind(Groups))))


def _kind(made: type[T], **kinds: Kind[Any]) -> Kind[T]:
    """Return the kind of a field whose value is a dataclass that validates its own fields."""
    return of(made, **{each.name: anything for each in fields(made)} | kinds)  # type: ignore[arg-type]


def _settle_each(owner: object, name: str, count: int, each: str, kind: Kind[float]) -> None:
    """Check a frozen dataclass's field, a number or ``count`` numbers, and store a sequence as a tuple."""
    value = getattr(owner, name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = tuple(value)
        object.__setattr__(owner, name, value)
        if len(value) != count:
            raise SpecError(
                f"{name}: expected one number, or one for each of {count} {each}, got {value!r}; "
                f"pass {count} numbers, or a single number for all {each}"
            )
    for number in value if isinstance(value, tuple) else (value,):
        _SOURCE.read(number, kind, name)
