"""The plans that a search considers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from gradwire import collectives
from gradwire.codecs import Codec, Identity
from gradwire.codecs.wrappers.projected import Projected
from gradwire.codecs.wrappers.scaled import Scaled
from gradwire.collectives import backend
from gradwire.errors import SpecError
from gradwire.plan import EXCHANGES, FLOAT_NBYTES, SEGMENT_UNIT_NBYTES, Plan, frame_nbytes
from gradwire.planner.inputs.workload import Workload
from gradwire.wire import MAX_FRAME_NBYTES

ALGORITHMS = (backend.NAME, "ring", "pairwise", "butterfly", "tree", "star")
"""The order in which they win ties: the transport's own all-reduce, for buckets that are not compressed; then
from the simplest to tune to the one that loads a single rank."""
SEGMENTS_NBYTES = (1 << 18, 1 << 20, 1 << 22)
BUCKETS_NBYTES = (1 << 20, 1 << 22, 1 << 24, 1 << 26)
MOST_BUCKETS = 64


@dataclass(frozen=True)
class Space:
    """The choices for each part of a plan.

    Raises ``SpecError`` for unknown names, and for an empty list of choices.

    Parameters
    ----------
    codecs
        What frames are made with (``Plan.encoding``), in order of preference. ``identity`` is always among
        them.
    algorithms
        Names or specs of ``gradwire.collectives``, in order of preference.
    pipelines
        The number of steps in flight: (1,), (2,), or (1, 2).
    segments_nbytes
        As in a plan.
    buckets_nbytes
        Bucket sizes to try in addition to a single bucket. They are tried only for a pipeline of 1, and only
        if backward takes time that can hide exchanges.
    exchanges
        As in a plan, in order of preference. ``"sharded"`` is tried with a ring, one bucket, and a pipeline
        of 1.
    whole
        Whether a single bucket is tried. Without it, the sizes in ``buckets_nbytes`` are tried whatever
        backward takes, and however many buckets they make.
    refused
        Codecs that are left out with an algorithm, in pairs.
    """

    codecs: tuple[Codec, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    pipelines: tuple[int, ...] = (1,)
    segments_nbytes: tuple[int, ...] = SEGMENTS_NBYTES
    buckets_nbytes: tuple[int, ...] = BUCKETS_NBYTES
    exchanges: tuple[str, ...] = EXCHANGES[:1]
    whole: bool = True
    refused: Collection[tuple[Codec, str]] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "codecs", tuple(dict.fromkeys((Identity(), *self.codecs))))
        for name in ("algorithms", "pipelines", "segments_nbytes", "exchanges"):
            values = tuple(dict.fromkeys(getattr(self, name)))
            if not values:
                raise SpecError(f"the planner wants one or more {name.partition('_')[0]} to choose from")
            object.__setattr__(self, name, values)
        for codec in self.codecs:
            Plan(**coded(codec), segment_nbytes=SEGMENT_UNIT_NBYTES)
        for algorithm in self.algorithms:
            collectives.get(algorithm)
        for pipeline in self.pipelines:
            Plan(pipeline=pipeline)
        for segment_nbytes in self.segments_nbytes:
            Plan(segment_nbytes=segment_nbytes)
        for exchange in self.exchanges:
            Plan(exchange=exchange)


def coded(encoding: Codec) -> dict[str, Any]:
    """Return the parts of a plan with this ``encoding``."""
    if isinstance(encoding, Scaled):
        return coded(encoding.codec) | {"scale": "auto"}
    return {"offload": encoding.codec} if isinstance(encoding, Projected) else {"codec": encoding}


def candidates(space: Space, workload: Workload, world: int) -> Iterator[Plan]:
    """Yield the plans for ``world`` ranks, in order of preference among plans that may take equally long.

    The transport segments its own all-reduce, so one segment size is enough for it.
    """
    for pipeline, codec, algorithm, exchange in product(
        space.pipelines, space.codecs, space.algorithms, space.exchanges
    ):
        if algorithm == backend.NAME and not isinstance(codec, Identity):
            continue  # it would be a ring
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
    """Yield sizes that cut the model into different numbers of buckets, starting with a single bucket."""
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
    """Yield sizes up to the first that holds a whole chunk; larger sizes give the same frames."""
    chunk_nbytes = FLOAT_NBYTES * math.ceil(count / chunks)
    for segment_nbytes in sorted(space.segments_nbytes):
        yield segment_nbytes
        if segment_nbytes >= chunk_nbytes:
            return
