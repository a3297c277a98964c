"""What exchanges lose with codecs that may be chosen, by the samples of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gradwire.auto.quality.contract import (
    BACK,
    Contract,
    Lost,
    encodings,
    exchanged_shares,
    mean_nbytes,
    suits,
)
from gradwire.auto.quality.samples import Samples
from gradwire.auto.times.costs import typical
from gradwire.codecs import Codec
from gradwire.plan import FLOAT_NBYTES, Plan

FAR_LESS = 0.8
"""A plan that sends less than this share of what another does sends far less."""


@dataclass(frozen=True)
class Losses:
    """Puts together what all ranks have found of their own gradients.

    Attributes
    ----------
    contract
        Has the number of ranks, and what exchanges with the plan in use were seen to lose.
    most_excepted
        See ``Lost``.
    """

    contract: Contract
    most_excepted: float

    def own(self, samples: Samples, codecs: Sequence[Codec]) -> list[float]:
        """Return what each encoding of these codecs loses of this rank's gradient."""
        return [share for each in encodings(codecs) for share in samples.shares(each)]

    def of_exchanges(
        self,
        rows: Sequence[Sequence[float]],
        samples: Samples,
        codecs: Sequence[Codec],
        algorithms: Sequence[str],
        present: Plan,
    ) -> dict[str, Lost]:
        """Return what exchanges lose, by their algorithms, from all ranks' ``own``.

        Of a parameter that an exchange with the ``present`` plan was seen to take more of, that counts.
        """
        count, world, seen = len(samples.names), self.contract.world, self.contract.seen
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
            used |= {name: max(share, used[name]) for name, share in seen.items() if name in used}
            found[algorithm] = Lost(samples.size_of, shares, nbytes, self.most_excepted)
        return found


def is_leaner(lost: Lost, present: Plan, others: Collection[Codec], most: float) -> bool:
    """Return whether one of ``others`` keeps the contract, with room to spare, and sends far less.

    That is, even if what it doesn't suit isn't compressed.
    """
    enough = FAR_LESS * lost.nbytes[present.codec]
    admitted = lost.admitted(most * BACK, present)
    parts = {codec: lost.part(names) for codec, names in admitted.items() if codec in others}
    return any(
        (1 - part) * lost.nbytes[codec] + part * FLOAT_NBYTES < enough for codec, part in parts.items()
    )
