"""The candidate plans of a search, and the training step for which they are compared."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

from gradwire import collectives
from gradwire.codecs import Codec, Identity, codec_of
from gradwire.codecs.wrappers import Projected, Scaled, offloadable
from gradwire.collectives import backend
from gradwire.errors import SpecError, refuse
from gradwire.fields import Source, real
from gradwire.plan import (
    EXCHANGES,
    FLOAT_NBYTES,
    MAX_LANES,
    SCALES,
    SEGMENT_UNIT_NBYTES,
    Plan,
    bucket_members,
    frame_nbytes,
)
from gradwire.timing.environment import Environment
from gradwire.wire import MAX_FRAME_NBYTES

PIECE_COUNT, MOST_PIECES = 1 << 18, 1024
"""The assumed parameters of a model whose layers are unknown: of 1 MiB each, or up to 1024 larger ones."""


LOCAL_UPDATES = 2.5
"""The time of an eager pipeline's local update, as a multiple of an optimizer step's time.

A local update is one optimizer step, with copies of the rank's gradient, weights, and optimizer state.
``bench/local_update.py`` measures this time.
"""
MOST_COUNT = 10**15
"""The largest accepted number of parameters; a larger number is probably a typo."""


_STEP = Source("a training step", "pass a time of at least 0 seconds")


@dataclass(frozen=True)
class Part:
    """One bucket: its number of floats, and the seconds from the start of backward until it is ready."""

    count: int
    ready_s: float


@dataclass(frozen=True)
class Workload:
    """One training step of one host, without the exchange.

    ``counts`` is the number of floats of each parameter, in the order of the model. Backward is assumed to
    visit the parameters in reverse order, and to take a time in proportion to the size of each parameter.
    Raises ``SpecError`` if the model has no parameters, or if a time is invalid.
    """

    counts: tuple[int, ...]
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0

    def __post_init__(self) -> None:
        counts = tuple(self.counts)
        object.__setattr__(self, "counts", counts)
        if not counts or not all(type(count) is int and count >= 0 for count in counts) or not sum(counts):
            expected = "parameter sizes that are whole numbers with a sum above 0"
            refuse(expected, counts[:4], "pass the numel() of each parameter")
        _STEP.check(self, **dict.fromkeys(("forward_s", "backward_s", "update_s"), real(0.0)))

    @classmethod
    def of_count(
        cls, count: int, forward_s: float = 0.0, backward_s: float = 0.0, update_s: float = 0.0
    ) -> Workload:
        """Return the workload of a model with ``count`` parameters and unknown layers."""
        if type(count) is not int or count < 1:
            remedy = "pass the model's number of parameters"
            refuse("a whole number of at least 1 parameter", count, remedy)
        if count > MOST_COUNT:
            shortened = f"{min(count, 10**300):.3g}"
            raise SpecError(
                f"expected at most {MOST_COUNT} parameters in a model, got {shortened}; pass the model's "
                "number of parameters, such as 25.6M"
            )
        piece = max(PIECE_COUNT, -(-count // MOST_PIECES))
        pieces, rest = divmod(count, piece)
        counts = (piece,) * pieces + ((rest,) if rest else ())
        return cls(counts, forward_s, backward_s, update_s)

    @property
    def count(self) -> int:
        """The number of floats in the whole gradient."""
        return sum(self.counts)

    @property
    def nbytes(self) -> int:
        """The size of the whole gradient as float32."""
        return FLOAT_NBYTES * self.count

    @property
    def compute_s(self) -> float:
        """The seconds of a step without an exchange."""
        return self.forward_s + self.backward_s + self.update_s

    def compute_with_s(self, pipeline: int, shards: int = 1) -> float:
        """Return the seconds of computation in a step with ``pipeline`` steps in flight.

        With 2 or more steps in flight, the time includes the eager pipeline's local update. ``shards`` is the
        number of ranks that divide the optimizer's update among themselves.
        """
        replays = pipeline - 2  # the local update replays all local gradients but the first
        update_s = self.update_s * (1 + LOCAL_UPDATES + replays if pipeline > 1 else 1 / shards)
        return self.forward_s + self.backward_s + update_s

    def parts(self, bucket_nbytes: int | None) -> list[Part]:
        """Divide the model into buckets as in training, and return them in the order of their exchange."""
        sizes = [
            sum(self.counts[members.start : members.stop])
            for members in bucket_members(self.counts, bucket_nbytes)
        ]
        done = accumulate(sizes)
        return [
            Part(size, self.backward_s * so_far / self.count)
            for size, so_far in zip(sizes, done, strict=True)
        ]


def no_model(found: object) -> SpecError:
    """Return the error to raise if ``found`` doesn't describe a model."""
    return SpecError(
        "expected a torch.nn.Module, a list of parameters, a number of parameters (25.6M), or a factory "
        f"package.module:name, got {found!r:.60}; pass one of these"
    )


ALGORITHMS = (backend.NAME, "ring", "pairwise", "butterfly", "tree", "star")
"""The candidate algorithms: of equally fast plans, the plan with the earlier algorithm is chosen.

The transport's native all-reduce, for uncompressed buckets, is first. The other algorithms range from the
ring, the simplest to tune, to the star, which loads a single rank.
"""
SEGMENTS_NBYTES = (1 << 18, 1 << 20, 1 << 22)
BUCKETS_NBYTES = (1 << 20, 1 << 22, 1 << 24, 1 << 26)
MOST_BUCKETS = 64
LANES = (1, 2, 4, 8, 16)
_DISTANT_S = 1e-3
"""The latency above which more lanes than cores are useful, because buckets mostly wait for the network."""


def lanes_in(environment: Environment, most: int = MAX_LANES) -> tuple[int, ...]:
    """Return the numbers of lanes to try, up to ``most``.

    On a link with a small latency, lanes beyond the number of cores would only wait for a core.
    """
    host = environment.host
    own_cores = host.cores // max(1, host.ranks_per_machine)
    is_distant = any(each.latency_s >= _DISTANT_S for each in environment.lines or (environment.line,))
    limit = most if is_distant else max(1, min(most, own_cores))
    return tuple(each for each in LANES if each <= limit)


@dataclass(frozen=True)
class Space:
    """The search space: the values to try for each field of a plan, in order of preference.

    Buckets of several sizes are tried only for a pipeline of 1 whose backward takes time that exchanges can
    overlap; ``"sharded"`` is tried only with a ring, a single bucket, and a pipeline of 1. Raises
    ``SpecError`` if a name is unknown or a list is empty.
    """

    codecs: tuple[Codec, ...]  # of ``Plan.encoding``; identity is always included
    algorithms: tuple[str, ...] = ALGORITHMS
    pipelines: tuple[int, ...] = (1,)
    segments_nbytes: tuple[int, ...] = SEGMENTS_NBYTES
    buckets_nbytes: tuple[int, ...] = BUCKETS_NBYTES
    exchanges: tuple[str, ...] = EXCHANGES[:1]
    # False: no single bucket; all of ``buckets_nbytes`` are tried, regardless of backward's time
    whole: bool = True
    refused: Collection[tuple[Codec, str]] = frozenset()  # not tried together
    lanes: tuple[int, ...] = (1,)  # of plans with several buckets (``in_lanes``)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codecs", tuple(dict.fromkeys((Identity(), *self.codecs))))
        for name in ("algorithms", "pipelines", "segments_nbytes", "exchanges", "lanes"):
            values = tuple(dict.fromkeys(getattr(self, name)))
            if not values:
                raise SpecError(
                    f"expected one or more {name.partition('_')[0]} to choose from, got none; add one, or "
                    "omit the list for the defaults"
                )
            object.__setattr__(self, name, values)
        for codec in self.codecs:
            Plan(**coded(codec), segment_nbytes=SEGMENT_UNIT_NBYTES)
        for algorithm in self.algorithms:
            collectives.get(algorithm)
        tried: dict[str, tuple[Any, ...]] = {"pipeline": self.pipelines, "exchange": self.exchanges}
        tried |= {"segment_nbytes": self.segments_nbytes, "lanes": self.lanes}
        for name, value in ((name, each) for name, values in tried.items() for each in values):
            Plan(**{name: value})


def offered(
    codecs: Sequence[str | Codec], scale: str | None = None, nic: str | Codec | None = None
) -> tuple[Codec, ...]:
    """Return the candidate encodings of a ``PlanRequest`` without duplicates, identity first.

    Raises ``SpecError`` for an invalid codec or scale.
    """
    named = [found for each in codecs if (found := codec_of(each, "codecs")) is not None]
    if scale not in SCALES:
        refuse("None or 'auto' for scale", scale, "omit scale, or pass 'auto'")
    behind = codec_of(nic, "nic")
    if behind is not None:
        named.append(Projected(offloadable(behind)))
    scaled = [] if scale is None else [Scaled(each) for each in named if _is_scalable(each)]
    if scale is not None and not scaled:
        raise SpecError(
            f"scale: expected a codec with an absolute bound, got {', '.join(map(str, named)) or 'none'}; "
            "add such a codec (errbound:2^-8), or omit scale"
        )
    return tuple(dict.fromkeys((Identity(), *named, *scaled)))


def _is_scalable(codec: Codec) -> bool:
    return codec.codec.is_scalable if isinstance(codec, Projected) else codec.is_scalable


def coded(encoding: Codec) -> dict[str, Any]:
    """Return the arguments of ``Plan`` for a plan with this ``encoding``."""
    if isinstance(encoding, Scaled):
        return coded(encoding.codec) | {"scale": "auto"}
    return {"offload": encoding.codec} if isinstance(encoding, Projected) else {"codec": encoding}


def candidates(space: Space, workload: Workload, world: int) -> Iterator[Plan]:
    """Yield the candidate plans with one lane for ``world`` ranks, preferred plans first."""
    for pipeline, codec, algorithm, exchange in product(
        space.pipelines, space.codecs, space.algorithms, space.exchanges
    ):
        if algorithm == backend.NAME and not isinstance(codec, Identity):
            continue  # with a codec, a native all-reduce becomes a ring
        if (codec, algorithm) in space.refused:
            continue
        sharded = exchange == "sharded"
        if sharded and (algorithm, pipeline) != ("ring", 1):
            continue
        for bucket_nbytes in (None,) if sharded else _buckets(space, workload, pipeline):
            longest = max(part.count for part in workload.parts(bucket_nbytes))
            segments = list(_segments(space, longest, collectives.get(algorithm).chunks(world)))
            for segment_nbytes in segments[:1] if algorithm == backend.NAME else segments:
                if frame_nbytes(codec, segment_nbytes) <= MAX_FRAME_NBYTES:
                    yield Plan(
                        algorithm=algorithm,
                        segment_nbytes=segment_nbytes,
                        pipeline=pipeline,
                        bucket_nbytes=bucket_nbytes,
                        exchange=exchange,
                        **coded(codec),
                    )


def _buckets(space: Space, workload: Workload, pipeline: int) -> Iterator[int | None]:
    """Yield bucket sizes that divide the model into different numbers of buckets, a single bucket first."""
    if not space.whole:
        yield from space.buckets_nbytes
        return
    yield None
    if pipeline > 1 or workload.backward_s == 0:
        return
    seen = {1}
    for bucket_nbytes in sorted(space.buckets_nbytes, reverse=True):
        number = len(workload.parts(bucket_nbytes))
        if number not in seen and number <= MOST_BUCKETS:
            seen.add(number)
            yield bucket_nbytes


def _segments(space: Space, count: int, chunks: int) -> Iterator[int]:
    """Yield segment sizes up to the first that holds a whole chunk; larger sizes give the same frames."""
    chunk_nbytes = FLOAT_NBYTES * math.ceil(count / chunks)
    for segment_nbytes in sorted(space.segments_nbytes):
        yield segment_nbytes
        if segment_nbytes >= chunk_nbytes:
            return


_PAIRS_IN_LANES = 2
"""The number of codec-algorithm pairs to try with several lanes; more would take seconds to predict."""


def in_lanes(plan: Plan, space: Space, workload: Workload) -> list[Plan]:
    """Return copies of ``plan`` with the larger numbers of lanes in ``space``, up to one lane per bucket."""
    if plan.is_sharded or plan.algorithm == backend.NAME:
        return []
    buckets = len(workload.parts(plan.bucket_nbytes))
    numbers = dict.fromkeys(min(each, buckets) for each in space.lanes)
    return [replace(plan, lanes=each) for each in numbers if each > plan.lanes]


def fastest_in_lanes(
    space: Space, workload: Workload, plans: Iterable[Plan], by_time: Iterable[Plan]
) -> list[Plan]:
    """Return candidates with several lanes, for the fastest pairs of codec and algorithm with one lane.

    ``plans`` are all candidates with one lane; ``by_time`` lists some of them, the fastest first. The result
    has every bucket size of these pairs, with the best segment size of the pair.
    """
    best = dict[tuple[Codec, str], Plan]()
    for plan in by_time:
        if len(best) < _PAIRS_IN_LANES:
            best.setdefault((plan.encoding, plan.algorithm), plan)
    chosen = dict[tuple[Codec, str, int | None], Plan]()
    for plan in plans:
        pair = plan.encoding, plan.algorithm
        if pair in best and plan.segment_nbytes <= best[pair].segment_nbytes:
            chosen[plan.encoding, plan.algorithm, plan.bucket_nbytes] = plan
    return [each for plan in chosen.values() for each in in_lanes(plan, space, workload)]
