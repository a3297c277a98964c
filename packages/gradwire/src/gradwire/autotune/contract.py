"""The quality contract: a limit on every parameter's relative error, and the codecs that meet this limit."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

from gradwire.autotune.costs import Rows, Work, typical
from gradwire.autotune.samples import Samples, part_of
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.codecs import Codec, Identity
from gradwire.codecs.rules import Rule
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.loss import encoded_terms
from gradwire.units import counted

_UNKNOWN = -1.0
"""The entry of a row for a parameter whose relative error this rank has not measured."""
_FIGURES = ("plain", "gentler", "shadow", "planned")
"""The parts of a row, each with every parameter's relative error.

``plain`` and ``shadow`` are errors with the plan's codec, ``gentler`` and ``planned`` with the parameter's
codec. ``plain`` and ``gentler`` are estimated from one encoding; ``shadow`` and ``planned`` are measured.
"""


def draw(step: int, buckets: int) -> int | None:
    """Return the index of the bucket to compare with its exact average in a step; None without buckets."""
    return Random(step).randrange(buckets) if buckets else None


def exchanged(algorithm: str, world: int, partial: float, finished: float) -> float:
    """Return the relative error of an exchange of orthogonal gradients.

    One encoding has the relative error ``partial`` for a partial sum, and ``finished`` for the finished sum.
    The squared norm of a partial sum of k gradients is k / ``world`` of the total sum's squared norm. A ring
    encodes partial sums of 1 to ``world - 1`` gradients, and the squared errors of all hops add up; pairwise
    encodes each gradient separately. For gradients of similar direction, the relative error is smaller.
    """
    counted = encoded_terms(algorithm, world).items()
    squares = sum(encodings * terms / world for terms, encodings in counted if terms < world)
    return math.hypot(math.sqrt(squares) * partial, finished)


def suits(codec: Codec, algorithm: str, world: int) -> bool:
    """Return whether a codec may be used with an algorithm.

    A codec with a separate step size for sums needs an algorithm that encodes each gradient separately. If
    partial sums are encoded again, the errors of the coarser step size add up, and raise the training loss by
    more than their norm suggests (``docs/codecs/ecsq.md``).
    """
    partial = (terms for terms in encoded_terms(algorithm, world) if terms < world)
    return codec.of_sums == codec or max(partial, default=1) == 1


def encodings(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """Return these codecs, and the codecs that encode finished sums in their place, without duplicates."""
    return tuple(dict.fromkeys(each for codec in codecs for each in (codec, codec.of_sums)))


@dataclass(frozen=True)
class RelativeErrors:
    """The largest relative error of any rank in an exchange, by codec and parameter."""

    counts: Mapping[str, int]  # the values of each parameter
    shares: Mapping[Codec, Mapping[str, float]]  # the relative error of every parameter with each codec
    nbytes: Mapping[Codec, float]  # the bytes per value with each codec
    most: float  # the largest allowed relative error
    # the share of the values for which an admitted codec may break the contract
    most_excepted: float = DEFAULT.most_excepted_share
    config: AutoConfig = DEFAULT

    def worst(self, codec: Codec, names: Iterable[str]) -> float:
        """Return the largest relative error of these parameters with a codec."""
        return max((self.shares[codec][name] for name in names), default=0.0)

    def noise(self, codec: Codec, names: Iterable[str]) -> float:
        """Return the sum of these parameters' squared relative errors, weighted by shares of all values."""
        squares = sum(self.shares[codec][name] ** 2 * self.counts[name] for name in names)
        return squares / max(sum(self.counts.values()), 1)

    def exceptions(self, codec: Codec, present: Plan) -> frozenset[str]:
        """Return the parameters for which ``codec`` breaks the contract.

        A parameter with a different codec in the present plan keeps that codec until the error with ``codec``
        is below ``back_share`` of the limit.
        """
        kept = excepted(present, self.counts) if codec == present.codec else frozenset[str]()
        return beyond(self.shares[codec], self.most, kept, self.config.back_share)

    def admitted(self, present: Plan) -> dict[Codec, frozenset[str]]:
        """Return the codecs that may be chosen, each with the parameters that need a different codec."""
        found = {codec: self.exceptions(codec, present) for codec in self.shares}
        return {codec: names for codec, names in found.items() if self.part(names) <= self.most_excepted}

    def involved(self, present: Plan) -> tuple[Codec, ...]:
        """Return the codecs that may be chosen, and the more precise codecs that some parameters need."""
        suited = self.admitted(present)
        others = (self.gentler(codec, names).values() for codec, names in suited.items())
        return tuple(dict.fromkeys(chain(suited, *others)))

    def part(self, names: Collection[str]) -> float:
        """Return the share of all values that these parameters hold."""
        return part_of(names, self.counts)

    def gentler(
        self, codec: Codec, names: Collection[str], refused: Collection[Codec] = ()
    ) -> dict[str, Codec]:
        """Return a more precise codec for each parameter in ``names``; all other parameters use ``codec``.

        A parameter's codec is the codec with the fewest bytes that meets the contract. But each codec needs
        its own frames. Therefore, a parameter gets the next larger codec that other parameters use, if
        this codec meets the contract and adds at most ``few_bytes_share`` of the bytes. Parameters with less
        than this share of the bytes are not compressed.
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
    shares: Mapping[str, float], most: float, others: Collection[str], back: float = DEFAULT.back_share
) -> frozenset[str]:
    """Return the parameters whose error exceeds ``most``, or ``back * most`` for parameters in ``others``."""
    return frozenset(
        name for name, share in shares.items() if share > most * (back if name in others else 1.0)
    )


def excepted(plan: Plan, names: Iterable[str]) -> frozenset[str]:
    """Return the parameters in ``names`` whose codec differs from the plan's codec."""
    return frozenset(name for name in names if plan.encoding_of(name) != plan.encoding)


def by_codec(codecs: Mapping[str, Codec]) -> dict[Codec, list[str]]:
    """Return the sorted parameter names of each codec."""
    found: dict[Codec, list[str]] = {}
    for name, codec in sorted(codecs.items()):
        found.setdefault(codec, []).append(name)
    return found


def rules_for(codecs: Mapping[str, Codec]) -> tuple[Rule, ...]:
    """Return rules that match only these parameters, each with its codec."""
    patterns = {codec: "|".join(map(re.escape, names)) for codec, names in by_codec(codecs).items()}
    return tuple(Rule(f"^(?:{pattern})$", codec) for codec, pattern in patterns.items())


def in_words(codec: Codec, others: Mapping[str, Codec], most: float) -> str:
    """Return the clause about parameters with other codecs, with up to three names for each codec."""
    said = []
    for other, names in by_codec(others).items():
        listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        said.append(f"{counted(len(names), 'parameter')} ({listed}) with {other}")
    because = f", since {codec} would exceed a relative error of {most:.0%}"
    return " and ".join(said) + because if said else ""


@dataclass
class Contract:
    """The check of a plan against the error limit in sampled steps, with the same result on all ranks."""

    most: float  # the largest allowed relative error of a parameter
    world: int
    # the last measured relative errors of whole exchanges with the present plan's codec, by parameter
    seen: dict[str, float] = field(default_factory=dict)
    # the more precise codecs that broke the contract under the present plan
    refused: set[Codec] = field(default_factory=set)
    config: AutoConfig = DEFAULT
    most_excepted: float = DEFAULT.most_excepted_share  # as in ``RelativeErrors``

    def begin(self) -> None:
        """Discard the results of the previous plan."""
        self.seen.clear()
        self.refused.clear()

    def row(self, samples: Samples | None, present: Plan) -> list[float]:
        """Return this rank's relative errors as one row, empty if the step is not sampled.

        The first value is 1 if the sample is finite; otherwise all values are 0.
        """
        if samples is None:
            return []
        if not samples.finite:
            return [0.0] * (1 + len(_FIGURES) * len(samples.names))
        own = {
            each: [
                exchanged(present.algorithm, self.world, partial, finished)
                for partial, finished in zip(samples.shares(each), samples.shares(each.of_sums), strict=True)
            ]
            for each in present.encodings
        }
        codecs = map(present.encoding_of, samples.names)
        shares = [own[present.encoding], [own[codec][i] for i, codec in enumerate(codecs)]]
        found = samples.shadow
        seen = ({}, {}) if found is None else (found.plain, found.planned)
        shares += [[each.get(name, _UNKNOWN) for name in samples.names] for each in seen]
        return [1.0, *(share for each in shares for share in each)]

    def judge(self, rows: Rows, samples: Samples, present: Plan) -> frozenset[str] | None:
        """Return the parameters that need a codec other than the plan's, from all ranks' rows.

        Return None if these parameters already have a codec that meets the contract, or if a rank's sample is
        not finite.
        """
        if not all(row[0] for row in rows):
            return None
        names = samples.names
        parts = _worst([row[1:] for row in rows], len(_FIGURES), len(names))
        plain, gentler, shadow, planned = (dict(zip(names, each, strict=True)) for each in parts)
        self.seen |= {name: share for name, share in shadow.items() if share != _UNKNOWN}
        shares = {name: max(share, self.seen.get(name, 0.0)) for name, share in plain.items()}
        kept = excepted(present, names)
        wanted = beyond(shares, self.most, kept, self.config.back_share)
        bad = {name for name in kept & wanted if max(gentler[name], planned[name]) > self.most}
        self.refused |= {*map(present.encoding_of, bad)}
        return wanted if bad or wanted != kept else None

    def own_errors(self, samples: Samples, codecs: Sequence[Codec]) -> list[float]:
        """Return the relative errors of one encoding of this rank's gradient, by codec and parameter."""
        return [share for each in encodings(codecs) for share in samples.shares(each)]

    def errors(
        self, rows: Rows, samples: Samples, codecs: Sequence[Codec], algorithms: Sequence[str], present: Plan
    ) -> Work[dict[str, RelativeErrors]]:
        """Return the relative errors of exchanges by algorithm, from all ranks' ``own_errors``.

        A larger error that was measured in an exchange with the ``present`` plan's codec replaces the
        computed error. Each codec is one piece of work.
        """
        names, world, every = samples.names, self.world, encodings(codecs)
        once = dict(zip(every, _worst(rows, len(every), len(names)), strict=True))
        part, nbytes = typical(samples.flat, self.config), dict[Codec, float]()
        for codec in codecs:  # half of the sums are partial, and half are finished
            payloads = (each.encode(part).numel() for each in (codec, codec.of_sums))
            nbytes[codec] = sum(payloads) / 2 / part.numel()
            yield None
        found = {}
        for algorithm in algorithms:
            shares = dict[Codec, dict[str, float]]()
            for codec in codecs:
                if suits(codec, algorithm, world):
                    of_sums = zip(names, once[codec], once[codec.of_sums], strict=True)
                    shares[codec] = {name: exchanged(algorithm, world, *each) for name, *each in of_sums}
            used = shares.get(present.codec, {})
            used |= {name: max(share, used[name]) for name, share in self.seen.items() if name in used}
            limits = self.most, self.most_excepted, self.config
            found[algorithm] = RelativeErrors(samples.size_of, shares, nbytes, *limits)
        return found


def _worst(rows: Rows, parts: int, count: int) -> list[list[float]]:
    """Return the largest values of all ranks, in ``parts`` of ``count`` values."""
    worst = [max(values) for values in zip(*rows, strict=True)]
    return [worst[i * count : (i + 1) * count] for i in range(parts)]


def is_leaner(lost: RelativeErrors, present: Plan, others: Collection[Codec]) -> bool:
    """Return whether a codec in ``others`` meets the contract with a margin, and sends far fewer bytes.

    The bytes are compared with those of the present codec. Parameters for which the other codec breaks the
    contract are assumed to be uncompressed.
    """
    enough = lost.config.far_less_share * lost.nbytes[present.codec]
    with_room = replace(lost, most=lost.most * lost.config.back_share).admitted(present)
    parts = {codec: lost.part(names) for codec, names in with_room.items() if codec in others}
    return any(
        (1 - part) * lost.nbytes[codec] + part * FLOAT_NBYTES < enough for codec, part in parts.items()
    )
