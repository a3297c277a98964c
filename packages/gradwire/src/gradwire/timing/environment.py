"""The environment of a plan, as far as a prediction needs it: lines, hosts, and the costs of codecs."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from gradwire.codecs import Identity
from gradwire.collectives import backend
from gradwire.errors import SpecError
from gradwire.timing.line import HostCost, Line
from gradwire.wire import HEADER_NBYTES


@dataclass(frozen=True)
class CodecPoint:
    """A codec's cost on a sum of ``terms`` gradients: payload bytes and seconds, per float32 value.

    Partial sums grow along a collective, and with them the payloads of codecs with an absolute bound.
    ``largest_error`` is the largest absolute error that was seen in one encoding, and ``lost`` the share of
    the norm that one lost; None if it was not measured. ``line_nbytes`` is what the payload takes on a
    line whose NICs compress it; None if none do.
    """

    terms: int
    nbytes: float
    encode_s: float
    decode_s: float
    decode_add_s: float
    largest_error: float = 0.0
    lost: float | None = None
    line_nbytes: float | None = None

    @property
    def carried_nbytes(self) -> float:
        """Bytes on the line."""
        return self.nbytes if self.line_nbytes is None else self.line_nbytes


@dataclass(frozen=True)
class CodecCost:
    """A codec's costs over the number of terms in a sum, and the seconds that any call takes besides.

    Checksums are included. Who publishes a chunk has to decode it too, unless the codec is ``exact``.
    ``disagreement`` is that of the repeats that the costs are medians of; see ``calibrate.disagreement``.
    ``finished`` is the cost on finished sums where another codec encodes those (``Codec.of_sums``).
    """

    codec: str
    points: tuple[CodecPoint, ...]
    call_s: float = 0.0
    exact: bool = False
    disagreement: float = 0.0
    finished: CodecPoint | None = None

    def __post_init__(self) -> None:
        terms = [point.terms for point in self.points]
        if not terms or terms != sorted(set(terms)) or terms[0] < 1:
            raise SpecError(
                f"expected points with rising numbers of terms from 1 up for {self.codec}, got {terms}"
            )

    @property
    def all_points(self) -> tuple[CodecPoint, ...]:
        """All that was measured."""
        return self.points if self.finished is None else (*self.points, self.finished)

    def of(self, terms: int, world: int) -> CodecPoint:
        """Return the costs for a sum of ``terms`` in an exchange of ``world`` ranks."""
        return self.finished if self.finished is not None and terms == world else self.at(terms)

    def typical(self, world: int) -> CodecPoint:
        """Return the costs of what ``world`` ranks encode, half of it partial sums, half of it finished."""
        partial = self.at(max(1, world // 2))
        return partial if self.finished is None else _mixed(partial, self.finished, 0.5)

    def at(self, terms: int) -> CodecPoint:
        """Return the costs for a partial sum, between measured ones by the logarithm of ``terms``."""
        place = bisect.bisect_left(self.points, terms, key=lambda point: point.terms)
        if place == len(self.points):
            return self.points[-1]
        above = self.points[place]
        if above.terms == terms or place == 0:
            return above
        below = self.points[place - 1]
        share = math.log(terms / below.terms) / math.log(above.terms / below.terms)
        return replace(_mixed(below, above, share), terms=terms)

    def ratio(self, world: int = 1) -> float:
        """Return how many times fewer bytes than the floats what ``world`` ranks send takes on the line."""
        nbytes = self.typical(world).carried_nbytes
        return 4.0 / nbytes if nbytes else math.inf


def _mixed(below: CodecPoint, above: CodecPoint, share: float) -> CodecPoint:
    mixed = {name: _between(value, getattr(above, name), share) for name, value in asdict(below).items()}
    return CodecPoint(**mixed | {"terms": below.terms})


def _between(below: float | None, above: float | None, share: float) -> Any:
    return None if below is None or above is None else (1 - share) * below + share * above


FREE = CodecCost("free", (CodecPoint(1, 4.0, 0.0, 0.0, 0.0),), exact=True)
"""An identity that takes no time: what the closed forms assume."""


@dataclass(frozen=True)
class Environment:
    """Everything that a prediction needs to know about where a plan will run.

    ``line`` is every host's line unless ``lines`` has one for each rank. ``groups`` are the sizes of groups
    of consecutive ranks whose traffic with other groups shares a core link of ``core_nbytes_per_s`` in each
    direction; empty for a flat network. ``codecs`` has a cost for every codec, by its spec. ``noise`` is the
    noise scale of the gradients, by which plans are compared; None to compare their steps alone.
    """

    line: Line
    codecs: Mapping[str, CodecCost]
    host: HostCost = field(default_factory=HostCost)
    lines: tuple[Line, ...] = ()
    groups: tuple[int, ...] = ()
    core_nbytes_per_s: float = math.inf
    header_nbytes: int = field(default=HEADER_NBYTES)
    noise: float | None = None

    def cost(self, codec: str) -> CodecCost:
        """Return the costs of the codec with this spec. Raises ``SpecError`` where it was not measured."""
        if codec not in self.codecs:
            known = ", ".join(self.codecs) or "none"
            raise SpecError(f"the costs of {codec} were not measured (measured: {known}); calibrate with it")
        return self.codecs[codec]

    def line_of(self, rank: int) -> Line:
        """Return the line of one rank."""
        return self.lines[rank] if self.lines else self.line


# What an exchange costs a host where the transport's own all-reduce does it (``collectives.backend``).

MESSAGE_S = 30e-6
"""The cost of a message of Gloo's own all-reduce at either end: no Python, no frame."""


def as_seen_by(algorithm: str, environment: Environment) -> Environment:
    """Return the environment with the costs that ``algorithm`` meets there.

    The transport's own all-reduce hands no frames to Python, copies nothing into them and computes no
    checksums; it only adds.
    """
    spec = str(Identity())
    if algorithm != backend.NAME or spec not in environment.codecs:
        return environment
    codecs = {**environment.codecs, spec: _without_frames(environment.codecs[spec])}
    return replace(environment, codecs=codecs, host=_of_messages(environment.host))


@lru_cache(maxsize=64)
def _without_frames(cost: CodecCost) -> CodecCost:
    points = (replace(point, encode_s=0.0, decode_s=0.0) for point in cost.points)
    return replace(cost, points=tuple(points), call_s=0.0)


@lru_cache(maxsize=64)
def _of_messages(host: HostCost) -> HostCost:
    return replace(host, send_s=min(host.send_s, MESSAGE_S), receive_s=min(host.receive_s, MESSAGE_S))
