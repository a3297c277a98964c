"""The environment of a prediction: links, hosts, and codec costs."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from gradwire.codecs import Identity
from gradwire.collectives import backend
from gradwire.errors import SpecError, refuse
from gradwire.fields import LATER
from gradwire.timing.line import HostCost, Line
from gradwire.wire import HEADER_NBYTES


@dataclass(frozen=True)
class CodecPoint:
    """A codec's cost on a sum of ``terms`` gradients: payload bytes and seconds, per float32 value.

    The cost depends on ``terms``, because partial sums grow along a collective, and with them the payloads of
    codecs with an absolute bound.
    """

    terms: int
    nbytes: float
    encode_s: float
    decode_s: float
    decode_add_s: float
    largest_error: float = 0.0  # absolute, measured in one encoding
    lost: float | None = None  # the relative error of one encoding: the error's norm over the values' norm
    line_nbytes: float | None = None  # the payload on a link behind compressing NICs, if any

    @property
    def carried_nbytes(self) -> float:
        """The bytes per value on the link, after compression by NICs, if any."""
        return self.nbytes if self.line_nbytes is None else self.line_nbytes


@dataclass(frozen=True)
class CodecCost:
    """The costs of a codec by a sum's number of terms, and a call's fixed seconds, checksums included."""

    codec: str
    points: tuple[CodecPoint, ...]
    call_s: float = 0.0
    exact: bool = False  # otherwise, a rank that encodes a finished chunk also decodes the chunk
    disagreement: float = 0.0  # the scatter of the repeated measurements (``calibrate.disagreement``)
    # on finished sums, if a different codec encodes them (``Codec.of_sums``)
    finished: CodecPoint | None = None

    def __post_init__(self) -> None:
        terms = [point.terms for point in self.points]
        if not terms or terms != sorted(set(terms)) or terms[0] < 1:
            expected = f"ascending term counts of at least 1 in the points of {self.codec}"
            refuse(expected, terms, "sort the points")

    @property
    def all_points(self) -> tuple[CodecPoint, ...]:
        """The points of partial sums, and the point of finished sums if a different codec encodes them."""
        return self.points if self.finished is None else (*self.points, self.finished)

    def of(self, terms: int, world: int) -> CodecPoint:
        """Return the costs for a sum of ``terms`` gradients in an exchange of ``world`` ranks."""
        return self.finished if self.finished is not None and terms == world else self.at(terms)

    def typical(self, world: int) -> CodecPoint:
        """Return the average costs in an exchange: half of the sums are partial, and half are finished."""
        partial = self.at(max(1, world // 2))
        return partial if self.finished is None else _mixed(partial, self.finished, 0.5)

    def at(self, terms: int) -> CodecPoint:
        """Return the costs for a partial sum, interpolated over the logarithm of the number of terms."""
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
        """Return the compression ratio on the link for ``world`` ranks."""
        nbytes = self.typical(world).carried_nbytes
        return 4.0 / nbytes if nbytes else math.inf


def _mixed(below: CodecPoint, above: CodecPoint, share: float) -> CodecPoint:
    mixed = {name: _between(value, getattr(above, name), share) for name, value in asdict(below).items()}
    return CodecPoint(**mixed | {"terms": below.terms})


def _between(below: float | None, above: float | None, share: float) -> Any:
    return None if below is None or above is None else (1 - share) * below + share * above


@dataclass(frozen=True)
class Environment:
    """The network, the hosts, the codecs' costs, and the gradient noise for which plans are predicted.

    Traffic between groups shares a core link of ``core_nbytes_per_s`` at each group, in each direction. Plans
    are compared by their time to a loss if the ``noise`` scale is given, otherwise by their step times.
    """

    line: Line  # of every host, unless ``lines`` has a link for each rank
    codecs: Mapping[str, CodecCost]  # by spec
    host: HostCost = field(default_factory=HostCost)
    lines: tuple[Line, ...] = ()
    groups: tuple[int, ...] = ()  # the sizes of groups of consecutive ranks; empty: a flat network
    core_nbytes_per_s: float = math.inf
    header_nbytes: int = field(default=HEADER_NBYTES)
    noise: float | None = None
    threads: int = field(default=1, metadata=LATER)  # with which the codecs were measured

    def cost(self, codec: str) -> CodecCost:
        """Return the costs of the codec with this spec. Raises ``SpecError`` if they weren't measured."""
        if codec not in self.codecs:
            known = ", ".join(self.codecs) or "none"
            raise SpecError(
                f"the costs of {codec} were not measured (measured: {known}); also pass the costs of {codec}"
            )
        return self.codecs[codec]

    def usable_cores(self, lanes: int) -> int:
        """Return the number of cores of a machine that can work for different lanes at the same time.

        If codecs were measured with several threads, a single lane already uses several cores.
        """
        cores = self.host.cores
        return cores if lanes == 1 else min(cores, max(2, cores // self.threads))

    def line_of(self, rank: int) -> Line:
        """Return the link of a rank: its own in ``lines``, or the common ``line``."""
        return self.lines[rank] if self.lines else self.line


MESSAGE_S = 30e-6
"""The seconds that a message of Gloo's native all-reduce costs at either end, without Python or frames."""


def as_seen_by(algorithm: str, environment: Environment) -> Environment:
    """Return the environment with the costs that apply to ``algorithm``.

    The transport's native all-reduce only adds: it passes no frames to Python, copies nothing into frames,
    and computes no checksums.
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
