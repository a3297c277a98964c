"""Watches what encoding does to learning: it warns if a parameter keeps losing most of its gradient.

Training goes on where a codec drops nearly everything, and the ratio of bytes only looks better then. So on a
few steps each rank compares what its encodings lost of every parameter with its own gradient of it.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

import torch

from gradwire.codecs import Codec
from gradwire.costs import ExchangeCost
from gradwire.errors import LOSSY_LOGGER, LossyError, LossyWarning, copied
from gradwire.exchange import Exchange, Norms
from gradwire.plan import Plan
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.lost import Layout, Measured, sampled
from gradwire.sync.observe import NULL_BUCKET, BucketObserver, StepObserver
from gradwire.sync.work import BucketWork, Work
from gradwire.units import counted

MOST = 0.5
"""The share of a parameter's norm above which a sample counts against the codec."""
SEVERAL = 3
"""So many samples are several."""

_LARGEST = float(torch.finfo(torch.float32).max)
_LOG = logging.getLogger(LOSSY_LOGGER)
_LOG.addHandler(logging.NullHandler())  # a program without logging reads the warning alone, once


@dataclass(slots=True)
class Measure:
    """One exchange's measuring; without a layout the exchange is not measured.

    ``norms`` are for the exchange; ``measured``, and what the ranks agreed to raise, are there when it ended.
    """

    layout: Layout | None = None
    measured: Measured | None = None
    verdict: LossyError | None = None

    @property
    def norms(self) -> Norms | None:
        """What the exchange measures with; ``note`` comes before another exchange of the bucket."""
        return None if self.layout is None else self.layout.norms


class LostMeter(StepObserver):
    """Measures on one rank what the encodings of one model's gradients lose, warns, or lets all ranks stop.

    ``note`` and ``agree`` are called by the thread of the exchange, all else by the training thread.

    Parameters
    ----------
    rank
        Whose gradients.
    plan
        Its codec loses; if it keeps residuals, every step is measured, and there are no warnings.
    names
        All parameters that may have a gradient, in an order that all ranks share.
    ledger
        Gets the shares and the warnings, and the end of every step, if there is one.
    strict
        Whether the ranks agree, in every sampled step, to raise what one of them would warn of.
    """

    def __init__(
        self, rank: int, plan: Plan, names: Sequence[str], ledger: Ledger | None = None, strict: bool = False
    ) -> None:
        self._rank, self._plan, self._names, self.ledger = rank, plan, list(names), ledger
        self._strict = strict
        self._last: dict[str, float] = {}
        self._often = Counter[str]()
        self._groups: dict[str, Hashable] = {}
        self._told = set[Hashable]()
        self._heard: LossyError | None = None
        self._counting = Lock()  # a pipeline's next exchange is under way when a step ends

    def judge(self, plan: Plan) -> None:
        """Judge another plan's losses from now on; those of the one before say nothing of them."""
        with self._counting:
            self._plan = plan
            self._often.clear()
            self._told.clear()

    def follow(self, names: Sequence[str]) -> None:
        """Judge these parameters from now on."""
        self._names = list(names)

    def measures(self, step: int) -> bool:
        """Return whether a step, numbered from 1 up, is measured; with residuals, there are no warnings."""
        return self.ledger is not None if self._plan.keeps_residual else sampled(step)

    def agrees(self, step: int) -> bool:
        """Return whether all ranks call ``agree`` at the end of this step; the same on all of them."""
        may_lose = not (self._plan.keeps_residual or all(each.EXACT for each in self._plan.encodings))
        return self._strict and may_lose and sampled(step)

    def note(self, measure: Measure) -> None:
        """Take in what an exchange has measured, if it has."""
        if measure.layout is None:
            return
        measured = measure.measured = Measured.of(measure.layout, measure.layout.norms.sums)
        if self._plan.keeps_residual or not measured.usable:
            return
        with self._counting:
            for name, group, share, rounding in measured.shares():
                if share is not None:  # else the rank has not used the parameter, and cannot tell
                    self._groups[name], self._last[name] = group, share
                    self._often[name] += share > MOST and not rounding

    def agree(self, exchange: Exchange) -> tuple[ExchangeCost, LossyError | None]:
        """Exchange one verdict of every rank, exactly; return what that cost, and what all ranks raise then.

        All ranks call it at the same place between their exchanges. Raises ``ExchangeError``.
        """
        link, exact = exchange.link, Exchange(exchange.link, Plan())
        return self.agree_by(partial(exact.all_reduce, average=False), link.rank, link.world)

    def agree_by(
        self, all_reduce: Callable[[torch.Tensor], ExchangeCost], rank: int, world: int
    ) -> tuple[ExchangeCost, LossyError | None]:
        """Do what ``agree`` does, by whatever sums floats exactly over a world in which this is ``rank``."""
        with self._counting:
            worst = self._worst(self._names)
        words = torch.zeros(world, 2, dtype=torch.float32, device="cpu")
        if worst is not None:
            words[rank] = torch.tensor([self._names.index(worst) + 1, min(self._last[worst], _LARGEST)])
        accounting = all_reduce(words.view(-1))
        told = [(each, int(number), share) for each, (number, share) in enumerate(words.tolist()) if number]
        if not told:
            return accounting, None
        with self._counting:
            self._often.clear()  # whoever goes on is told again after as many samples
        loser, number, share = max(told, key=lambda each: each[2])
        others = _and_others([each for each, _, _ in told if each != loser])
        return accounting, LossyError(
            f"rank {loser}{others}: {self._sentence(self._names[number - 1], share, 0)}; without strict this "
            "is a warning"
        )

    def count(
        self,
        bucket: str,
        accounting: ExchangeCost,
        exposed_s: float,
        gradient_nbytes: int = 0,
        measure: Measure | None = None,
    ) -> None:
        """Count an exchange in the ledger, and hear what all ranks raise at the end of the step."""
        measure = measure or Measure()
        if self.ledger is not None:
            self.ledger.exchanged(
                bucket, accounting, exposed_s, gradient_nbytes=gradient_nbytes, lost=measure.measured
            )
        self._heard = self._heard or measure.verdict

    def count_work(self, work: Work, exposed_s: float) -> None:
        """Count a piece of work in the ledger, and hear what all ranks raise at the end of the step."""
        if self.ledger is not None and work.name is not None:
            self.ledger.exchanged(
                work.name, work.cost, exposed_s, gradient_nbytes=work.nbytes, lost=work.lost
            )
        self._heard = self._heard or work.verdict

    def bucket(self, work: BucketWork) -> BucketObserver:
        """Measure a bucket that has a layout, in the steps that are measured."""
        if work.layout is None or work.is_bypassed or not self.measures(work.step):
            return NULL_BUCKET
        work.request = replace(work.request, norms=work.layout.norms)
        return _MeasuredBucket(self, work)

    def end_step(self) -> None:
        """End the ledger's step, then warn. Raises ``LossyError`` where all ranks have agreed to."""
        sentences = [] if self._strict else self._findings()
        if self.ledger is not None:
            for sentence in sentences:
                self.ledger.warned(sentence)
            self.ledger.end_step()
        self.tell(sentences)

    def tell(self, sentences: Sequence[str] = ()) -> None:
        """Warn with these sentences. Raises ``LossyError`` where all ranks have agreed to."""
        heard, self._heard = self._heard, None
        for sentence in sentences:
            _LOG.warning(sentence)
        for sentence in sentences:
            warnings.warn(sentence, LossyWarning, stacklevel=3)
        if heard is not None:
            raise copied(heard)

    def _findings(self) -> list[str]:
        """Return a sentence for every group of which none has been told, and which deserves it."""
        with self._counting:
            return self._sentences()

    def _sentences(self) -> list[str]:
        if max(self._often.values(), default=0) < SEVERAL:
            return []
        wanted = dict.fromkeys(self._groups[name] for name, often in self._often.items() if often >= SEVERAL)
        sentences = []
        for group in [each for each in wanted if each not in self._told]:
            self._told.add(group)
            members = [name for name, own in self._groups.items() if own == group]
            worst = self._worst(members)
            if worst is not None:
                others = sum(self._often[name] >= SEVERAL for name in members) - 1
                sentences.append(f"rank {self._rank}: {self._sentence(worst, self._last[worst], others)}")
        return sentences

    def _worst(self, names: Sequence[str]) -> str | None:
        """Return the parameter that lost most in the last sample, of those that lost much several times."""
        known = [name for name in names if self._often[name] >= SEVERAL]
        return max(known, key=lambda name: self._last[name], default=None)

    def _sentence(self, name: str, share: float, others: int) -> str:
        more = f" (and more than half of {counted(others, 'other parameter')} beside it)" if others else ""
        encoding = self._plan.encoding_of(name)
        return (
            f"{encoding} loses {share:.1%} of the norm of the gradient of {name}{more}, and keeps no "
            f"residual, so it may not learn; {_advice(encoding)}"
        )


class _MeasuredBucket(BucketObserver):
    """Takes in what the exchange of one bucket has measured."""

    def __init__(self, meter: LostMeter, work: BucketWork) -> None:
        self._meter, self._work, self._measure = meter, work, Measure(work.layout)

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:  # noqa: ARG002
        """Note it before another exchange of the bucket."""
        self._meter.note(self._measure)
        self._work.lost = self._measure.measured
        return ExchangeCost()


def _advice(encoding: Codec) -> str:
    better = "bf16" if encoding.name == "fp8" else "fp8"
    if encoding.name == "terngrad":  # its errors grow when they are fed back
        return f"try the codec {better}"
    return f"try the codec {better}, or a plan with residual=True"


def _and_others(ranks: Sequence[int]) -> str:
    return f" (and {counted(len(ranks), 'other rank')})" if ranks else ""
