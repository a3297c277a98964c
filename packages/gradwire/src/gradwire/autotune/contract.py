"""The quality contract: which parameters an exchange takes too much of, and which codec they get instead."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

import torch

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.autotune.costs import typical
from gradwire.autotune.samples import Samples, part_of
from gradwire.codecs import Codec, Identity
from gradwire.codecs.rules import Rule
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.loss import encoded_terms
from gradwire.units import counted

_UNKNOWN = -1.0
"""Stands in a row for the share of a parameter that this rank has not seen."""
_FIGURES = ("plain", "gentler", "shadow", "planned")
"""A row's shares of every parameter: with the plan's codec and its own one, expected and then as seen."""


def draw(step: int, buckets: int) -> int | None:
    """Return the number of the bucket that is compared with its exact average in a step; None if none is."""
    return Random(step).randrange(buckets) if buckets else None


def exchanged(algorithm: str, world: int, partial: float, finished: float) -> float:
    """Return the share of the sum's norm that an exchange loses, if gradients are orthogonal.

    One encoding of a partial sum loses the share ``partial`` of what it encodes, and one of the finished sum
    ``finished``. A partial sum of k gradients has k parts in ``world`` of the sum's square. In a ring those
    of 1 to ``world - 1`` gradients are encoded, and losses of all hops add up; pairwise, each gradient by
    itself. Of gradients that point in one direction, partial sums lose less.
    """
    counted = encoded_terms(algorithm, world).items()
    squares = sum(encodings * terms / world for terms, encodings in counted if terms < world)
    return math.hypot(math.sqrt(squares) * partial, finished)


def suits(codec: Codec, algorithm: str, world: int) -> bool:
    """Return whether an algorithm adds up as a codec with another step for sums expects.

    It must encode each gradient by itself: if partial sums are encoded again, what its coarser step
    loses adds up, and costs more of the loss than of the norm (``docs/codecs/ecsq.md``).
    """
    partial = (terms for terms in encoded_terms(algorithm, world) if terms < world)
    return codec.of_sums == codec or max(partial, default=1) == 1


def encodings(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """Return the codecs of partial and of finished sums, for each of these codecs."""
    return tuple(dict.fromkeys(each for codec in codecs for each in (codec, codec.of_sums)))


def exchanged_shares(
    codec: Codec, algorithm: str, world: int, once: Mapping[Codec, Mapping[str, float]]
) -> dict[str, float]:
    """Return the relative error of an exchange by parameter, from those of one encoding (``once``)."""
    partial, finished = once[codec], once[codec.of_sums]
    return {name: exchanged(algorithm, world, partial[name], finished[name]) for name in partial}


def mean_nbytes(codec: Codec, values: torch.Tensor) -> float:
    """Return how many bytes a value takes, half of them in partial sums, half in finished ones."""
    return sum(each.encode(values).numel() for each in (codec, codec.of_sums)) / 2 / values.numel()


@dataclass(frozen=True)
class RelativeErrors:
    """The relative errors of exchanges by parameter, on the rank that loses most.

    Attributes
    ----------
    counts
        The number of values of each parameter, by its name.
    shares
        For each codec, the share of every parameter's norm.
    nbytes
        The bytes that a value takes with each codec.
    most
        The largest share of a parameter's norm that an exchange may lose.
    most_excepted
        A codec that suits fewer of the values than the rest is not admitted.
    config
        The thresholds of the run.
    """

    counts: Mapping[str, int]
    shares: Mapping[Codec, Mapping[str, float]]
    nbytes: Mapping[Codec, float]
    most: float
    most_excepted: float = DEFAULT.most_excepted_share
    config: AutoConfig = DEFAULT

    def worst(self, codec: Codec, names: Iterable[str]) -> float:
        """Return the largest share that a codec loses of these parameters."""
        return max((self.shares[codec][name] for name in names), default=0.0)

    def noise(self, codec: Codec, names: Iterable[str]) -> float:
        """Return the mean over all values of the squared shares that a codec loses, of these parameters."""
        squares = sum(self.shares[codec][name] ** 2 * self.counts[name] for name in names)
        return squares / max(sum(self.counts.values()), 1)

    def exceptions(self, codec: Codec, present: Plan) -> frozenset[str]:
        """Return the parameters that need another codec; those that have one under the same plan, longer."""
        kept = excepted(present, self.counts) if codec == present.codec else frozenset[str]()
        return beyond(self.shares[codec], self.most, kept, self.config.back_share)

    def admitted(self, present: Plan) -> dict[Codec, frozenset[str]]:
        """Return the codecs that may be chosen, each with the parameters that need another one."""
        found = {codec: self.exceptions(codec, present) for codec in self.shares}
        return {codec: names for codec, names in found.items() if self.part(names) <= self.most_excepted}

    def involved(self, present: Plan) -> tuple[Codec, ...]:
        """Return the codecs that may be chosen, and those that the parameters get which they don't suit."""
        suited = self.admitted(present)
        others = (self.gentler(codec, names).values() for codec, names in suited.items())
        return tuple(dict.fromkeys(chain(suited, *others)))

    def part(self, names: Collection[str]) -> float:
        """Return the share of all values that these parameters have."""
        return part_of(names, self.counts)

    def gentler(
        self, codec: Codec, names: Collection[str], refused: Collection[Codec] = ()
    ) -> dict[str, Codec]:
        """Return the codec of each of these parameters, where the others have ``codec``.

        It is the one with the fewest bytes that keeps the contract. Each codec is an exchange of its own,
        so parameters get the next larger one that others have and that suits them, too, unless this costs
        more than ``few_bytes_share``; and none, if that hardly counts.
        """
        none = Identity()
        usable = (each for each in self.shares if each not in (codec, none) and each not in refused)
        order = [*sorted(usable, key=lambda each: self.nbytes[each]), none]
        groups = {each: set[str]() for each in order}
        for name in names:
            groups[next(each for each in order if self._suits(each, [name]))].add(name)
        little = self.config.few_bytes_share * self.nbytes[codec]
        for at, each in enumerate(order):
            own, larger = groups[each], order[at + 1 :]
            other = next((it for it in larger if groups[it] and self._suits(it, own)), each)
            more = self.part(own) * (self._size(other) - self._size(each))
            hardly_counts = FLOAT_NBYTES * self.part(own) <= little
            target = other if other != each and more <= little else none if hardly_counts else each
            groups[each] = set()
            groups[target] |= own
        return {name: each for each, own in groups.items() for name in own}

    def _suits(self, codec: Codec, names: Iterable[str]) -> bool:
        return codec.EXACT or self.worst(codec, names) <= self.most

    def _size(self, codec: Codec) -> float:
        return FLOAT_NBYTES if codec == Identity() else self.nbytes[codec]


def beyond(
    shares: Mapping[str, float], most: float, kept: Collection[str], back: float = DEFAULT.back_share
) -> frozenset[str]:
    """Return the names whose share exceeds ``most``; of those in ``kept``, the part ``back`` of it."""
    return frozenset(name for name, share in shares.items() if share > most * (back if name in kept else 1.0))


def excepted(plan: Plan, names: Iterable[str]) -> frozenset[str]:
    """Return which of these parameters have another codec than the rest."""
    return frozenset(name for name in names if plan.encoding_of(name) != plan.encoding)


def by_codec(codecs: Mapping[str, Codec]) -> dict[Codec, list[str]]:
    """Return the sorted names of the parameters that have each codec."""
    found: dict[Codec, list[str]] = {}
    for name, codec in sorted(codecs.items()):
        found.setdefault(codec, []).append(name)
    return found


def rules_for(codecs: Mapping[str, Codec]) -> tuple[Rule, ...]:
    """Return the rules that give these parameters their codecs, and no other parameter one."""
    patterns = {codec: "|".join(map(re.escape, names)) for codec, names in by_codec(codecs).items()}
    return tuple(Rule(f"^(?:{pattern})$", codec) for codec, pattern in patterns.items())


def in_words(codec: Codec, others: Mapping[str, Codec], most: float, shown: int = 3) -> str:
    """Return the clause about parameters with other codecs, with ``shown`` names each; empty without any."""
    said = []
    for other, names in by_codec(others).items():
        listed = ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")
        said.append(f"{counted(len(names), 'parameter')} ({listed}) with {other}")
    because = f", since {codec} would lose more than {most:.0%} of the gradient"
    return " and ".join(said) + because if said else ""


@dataclass
class Contract:
    """Judges plans by sampled steps; the same on all ranks, from the rows of all of them.

    Attributes
    ----------
    most
        The largest share of a parameter's norm that an exchange may lose.
    world
        The number of ranks.
    seen
        The relative errors by parameter of whole exchanges with the present plan's codec, as last measured.
    refused
        The codecs that were too rough in place of it.
    config
        The thresholds of the run.
    most_excepted
        See ``RelativeErrors``.
    """

    most: float
    world: int
    seen: dict[str, float] = field(default_factory=dict)
    refused: set[Codec] = field(default_factory=set)
    config: AutoConfig = DEFAULT
    most_excepted: float = DEFAULT.most_excepted_share

    def begin(self) -> None:
        """Forget what was found of another plan."""
        self.seen.clear()
        self.refused.clear()

    def row(self, samples: Samples | None, present: Plan) -> list[float]:
        """Return this rank's errors as one row; it is empty for a step that is not sampled."""
        if samples is None:
            return []
        if not samples.finite:
            return [0.0] * (1 + len(_FIGURES) * len(samples.names))
        own = {each: self._exchanged(samples, each, present.algorithm) for each in present.encodings}
        codecs = map(present.encoding_of, samples.names)
        shares = [own[present.encoding], [own[codec][i] for i, codec in enumerate(codecs)]]
        found = samples.shadow
        seen = ({}, {}) if found is None else (found.plain, found.planned)
        shares += [[each.get(name, _UNKNOWN) for name in samples.names] for each in seen]
        return [1.0, *(share for each in shares for share in each)]

    def judge(
        self, rows: Sequence[Sequence[float]], samples: Samples, present: Plan
    ) -> frozenset[str] | None:
        """Return the parameters that need another codec than the rest, from now on, by all ranks' rows.

        None where that is the case already, and where something was not finite.
        """
        if not all(row[0] for row in rows):
            return None
        names, count = samples.names, len(samples.names)
        worst = [max(values) for values in zip(*(row[1:] for row in rows), strict=True)]
        plain, gentler, shadow, planned = (
            dict(zip(names, worst[i * count : (i + 1) * count], strict=True)) for i in range(len(_FIGURES))
        )
        self.seen |= {name: share for name, share in shadow.items() if share != _UNKNOWN}
        shares = {name: max(share, self.seen.get(name, 0.0)) for name, share in plain.items()}
        kept = excepted(present, names)
        wanted = beyond(shares, self.most, kept, self.config.back_share)
        bad = {name for name in kept & wanted if max(gentler[name], planned[name]) > self.most}
        self.refused |= {*map(present.encoding_of, bad)}
        return wanted if bad or wanted != kept else None

    def own_errors(self, samples: Samples, codecs: Sequence[Codec]) -> list[float]:
        """Return the relative errors of this rank's gradient, by encoding and parameter."""
        return [share for each in encodings(codecs) for share in samples.shares(each)]

    def errors(
        self,
        rows: Sequence[Sequence[float]],
        samples: Samples,
        codecs: Sequence[Codec],
        algorithms: Sequence[str],
        present: Plan,
    ) -> dict[str, RelativeErrors]:
        """Return the relative errors of exchanges by algorithm, from all ranks' ``own_errors``.

        Of a parameter that an exchange with the ``present`` plan was seen to take more of, that counts.
        """
        count, world = len(samples.names), self.world
        worst = [max(values) for values in zip(*rows, strict=True)]
        once = {
            each: dict(zip(samples.names, worst[i * count : (i + 1) * count], strict=True))
            for i, each in enumerate(encodings(codecs))
        }
        part = typical(samples.flat)
        nbytes = {codec: mean_nbytes(codec, part) for codec in codecs}
        found = {}
        for algorithm in algorithms:
            shares = {
                codec: exchanged_shares(codec, algorithm, world, once)
                for codec in codecs
                if suits(codec, algorithm, world)
            }
            used = shares.get(present.codec, {})
            used |= {name: max(share, used[name]) for name, share in self.seen.items() if name in used}
            limits = self.most, self.most_excepted, self.config
            found[algorithm] = RelativeErrors(samples.size_of, shares, nbytes, *limits)
        return found

    def _exchanged(self, samples: Samples, codec: Codec, algorithm: str) -> list[float]:
        pairs = zip(samples.shares(codec), samples.shares(codec.of_sums), strict=True)
        return [exchanged(algorithm, self.world, *pair) for pair in pairs]


def is_leaner(lost: RelativeErrors, present: Plan, others: Collection[Codec]) -> bool:
    """Return whether one of ``others`` keeps the contract, with room to spare, and sends far less.

    It does so even if parameters that it doesn't suit aren't compressed.
    """
    enough = lost.config.far_less_share * lost.nbytes[present.codec]
    with_room = replace(lost, most=lost.most * lost.config.back_share).admitted(present)
    parts = {codec: lost.part(names) for codec, names in with_room.items() if codec in others}
    return any(
        (1 - part) * lost.nbytes[codec] + part * FLOAT_NBYTES < enough for codec, part in parts.items()
    )
