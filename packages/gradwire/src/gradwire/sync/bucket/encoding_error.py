"""The relative error of encoding, by parameter: measured in a few steps, counted, and reported if large.

If a codec drops nearly the whole gradient, training continues, and the compression ratio even improves. So
each rank compares every parameter's encoding error with the rank's own gradient of the parameter.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from threading import Lock

import torch

from gradwire.codecs import DEFAULT_CODEC, parse
from gradwire.costs import ExchangeCost
from gradwire.errors import LOSSY_LOGGER, LossyError, LossyWarning, copied
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.bucket.observe import NULL_BUCKET, BucketObserver, StepObserver
from gradwire.sync.bucket.work import BucketWork
from gradwire.sync.context import SyncContext
from gradwire.sync.layout import Layout
from gradwire.sync.ledger.lost import ErrorSums, sampled
from gradwire.sync.thread import Work
from gradwire.units import counted

MOST = 0.5  # the relative error above which a sample counts toward a warning
SEVERAL = 3  # the number of samples above ``MOST`` that triggers a warning

_LARGEST = float(torch.finfo(torch.float32).max)
_LOG = logging.getLogger(LOSSY_LOGGER)
_LOG.addHandler(logging.NullHandler())  # without logging, a program shows only the warning, once


class EncodingErrorMeter(StepObserver):
    """The meter of one rank's encoding errors, which warns, or raises ``LossyError`` on all ranks.

    With a plan that keeps residuals, every step is measured, and there are no warnings. The context's ledger
    receives the relative errors, the warnings, and the end of every step. With strict options, ranks agree in
    every measured step on the error that replaces a warning. ``names`` are all parameters that may have a
    gradient, in an order that all ranks share. ``measured`` and ``agree`` are called on the communication
    thread, all other methods on the training thread.
    """

    def __init__(self, context: SyncContext, names: Sequence[str]) -> None:
        self._context, self._names = context, list(names)
        self._last: dict[str, float] = {}
        self._often = Counter[str]()
        self._groups: dict[str, Hashable] = {}
        self._warned = set[Hashable]()
        self._verdict: LossyError | None = None
        self._counting = Lock()  # a pipeline's next exchange may run when a step ends

    def follow(self, names: Sequence[str]) -> None:
        """Measure the parameters ``names`` from now on."""
        self._names = list(names)

    def forget(self) -> None:
        """Reset the counts and warnings after a change of plan."""
        with self._counting:
            self._often.clear()
            self._warned.clear()

    def measures(self, step: int) -> bool:
        """Return whether a step, counted from 1, is measured."""
        return self._context.ledger is not None if self._context.plan.keeps_residual else sampled(step)

    def agrees(self, step: int) -> bool:
        """Return whether all ranks call ``agree`` at the end of this step, the same on all ranks."""
        plan = self._context.plan
        may_lose = not (plan.keeps_residual or all(each.EXACT for each in plan.encodings))
        return self._context.options.strict and may_lose and sampled(step)

    def bucket(self, work: BucketWork) -> BucketObserver:
        """Return the observer that measures a bucket if the bucket has a layout and the step is measured."""
        if work.layout is None or work.is_bypassed or not self.measures(work.step):
            return NULL_BUCKET
        work.request = replace(work.request, norms=work.layout.norms)
        return _MeasuredBucket(self, work, work.layout)

    def measured(self, layout: Layout, step: int) -> ErrorSums:
        """Return a step's encoding errors from ``layout.norms``, which the next exchange overwrites."""
        found = ErrorSums.of(layout, layout.norms.sums, is_sampled=sampled(step))
        if self._context.plan.keeps_residual or not found.usable:
            return found
        with self._counting:
            for name, group, share, rounding in found.shares():
                if share is not None:  # else the rank has not used the parameter, so the error is undefined
                    self._groups[name], self._last[name] = group, share
                    self._often[name] += share > MOST and not rounding
        return found

    def agree(self, exchange: Exchange) -> tuple[ExchangeCost, LossyError | None]:
        """Gather every rank's worst relative error, exactly; return the cost, and the error to raise, if any.

        All ranks call this between the same two exchanges. Raises ``ExchangeError``.
        """
        with self._counting:
            often = [name for name in self._names if self._often[name] >= SEVERAL]
            worst = max(often, key=self._last.__getitem__, default=None)
        words = torch.zeros(exchange.link.world, 2, dtype=torch.float32, device="cpu")
        if worst is not None:
            found = self._names.index(worst) + 1, min(self._last[worst], _LARGEST)
            words[exchange.link.rank] = torch.tensor(found)
        cost = Exchange(exchange.link, Plan()).all_reduce(words.view(-1), average=False)
        losers = [(rank, int(number), share) for rank, (number, share) in enumerate(words.tolist()) if number]
        if not losers:
            return cost, None
        with self._counting:
            self._often.clear()  # a run that continues raises again after ``SEVERAL`` more samples
        loser, number, share = max(losers, key=lambda each: each[2])
        others = f" (and {counted(len(losers) - 1, 'other rank')})" if len(losers) > 1 else ""
        sentence = self._sentence(self._names[number - 1], share, 0)
        return cost, LossyError(
            f"rank {loser}{others}: {sentence}; pass strict=False to continue with a warning"
        )

    def count(self, work: Work, exposed_s: float) -> None:
        """Count a piece of work in the ledger, and store the error to raise at the end of the step."""
        if work.name is not None:
            self._context.count(work.name, work.cost, exposed_s, work.nbytes, work.lost)
        self._verdict = self._verdict or work.verdict

    def end_step(self) -> None:
        """End the ledger's step, warn of large errors, and raise the ``LossyError`` that ranks agreed on."""
        sentences = [] if self._context.options.strict else self._findings()
        ledger = self._context.ledger
        if ledger is not None:
            for sentence in sentences:
                ledger.warned(sentence)
            ledger.end_step()
        for sentence in sentences:
            _LOG.warning(sentence)
        for sentence in sentences:
            warnings.warn(sentence, LossyWarning, stacklevel=3)
        self.raise_verdict()

    def raise_verdict(self) -> None:
        """Raise ``LossyError`` once if all ranks have agreed on it."""
        verdict, self._verdict = self._verdict, None
        if verdict is not None:
            raise copied(verdict)

    def _findings(self) -> list[str]:
        """Return a warning for every group with several large errors and no earlier warning."""
        lossy: dict[Hashable, list[str]] = {}
        with self._counting:
            if max(self._often.values(), default=0) < SEVERAL:
                return []
            for name, often in self._often.items():
                if often >= SEVERAL and self._groups[name] not in self._warned:
                    lossy.setdefault(self._groups[name], []).append(name)
            self._warned.update(lossy)
            return [self._finding(names) for names in lossy.values()]

    def _finding(self, names: Sequence[str]) -> str:
        """Return the warning for a group's parameters with several large errors."""
        worst = max(names, key=self._last.__getitem__)
        return f"rank {self._context.rank}: {self._sentence(worst, self._last[worst], len(names) - 1)}"

    def _sentence(self, name: str, share: float, others: int) -> str:
        more = f" (and more than half for {counted(others, 'other parameter')})" if others else ""
        encoding = self._context.plan.encoding_of(name)
        better = next(each for each in (DEFAULT_CODEC, "bf16", "fp8") if parse(each).name != encoding.name)
        # Error feedback would make the errors of terngrad grow.
        residual = "" if encoding.name == "terngrad" else ", or a plan with residual=True"
        return (
            f"{encoding} loses {share:.1%} of the gradient norm of {name}{more}, and the plan keeps no "
            f"residual, so training may fail; try the codec {better}{residual}"
        )


class _MeasuredBucket(BucketObserver):
    def __init__(self, meter: EncodingErrorMeter, work: BucketWork, layout: Layout) -> None:
        self._meter, self._work, self._layout = meter, work, layout

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:  # noqa: ARG002
        """Store the measured errors in the work."""
        self._work.lost = self._meter.measured(self._layout, self._work.step)
        return ExchangeCost()


class Verdict(Work):
    """The end-of-step exchange in which all ranks agree on the ``LossyError`` to raise, if any.

    It starts after the work in ``earlier``, which other lanes may run.
    """

    def __init__(
        self, context: SyncContext, meter: EncodingErrorMeter, step: int, earlier: Sequence[Work] = ()
    ) -> None:
        what = f"the verdicts on step {step}"
        super().__init__(context, "verdicts", what, context.timeout_s, count=meter.count)
        self._meter, self.step, self._earlier = meter, step, earlier

    def run(self, exchange: Exchange) -> None:
        """Run the agreement, and set ``cost`` and ``verdict``."""
        for each in self._earlier:
            each.settle()
        exchange.transport.check()  # another lane may have failed
        self.cost, self.verdict = self._meter.agree(exchange)
