"""The ledger: the exchanges by bucket and step, the bypasses of the codec, and the encoding errors.

Users hardly notice if compression did not run, or if a codec dropped nearly all of a gradient, which gives
the best ratio. So the ledger counts every gradient that bypassed the codec, with the reason, and every
measured error.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

from gradwire.checkpoints import check_sealed, sealed
from gradwire.costs import ExchangeCost
from gradwire.errors import JobError, SpecError, StateError
from gradwire.fields import Source, one_of, real, rows, whole
from gradwire.files import check_folder_writable
from gradwire.log import LOG
from gradwire.page import RECORD, keep
from gradwire.sync.ledger.counts import SOURCE, BucketCounts, BypassCounts, Decided, PlanChoice, Tally
from gradwire.sync.ledger.lost import ErrorSums, LostBook
from gradwire.sync.ledger.prometheus import exposition
from gradwire.sync.ledger.sinks import Sink, StepCounts
from gradwire.sync.ledger.summary import Summary, ledger_record, page_of
from gradwire.units import format_size

_VERSION = 5
_READ = (1, 2, 3, 4, _VERSION)  # version 1 has no relative errors, and versions 1 to 4 no decisions


class Ledger:
    """The counts of one rank's exchanges. All threads may count at any time.

    Parameters
    ----------
    rank
        The rank. Only rank 0 logs, to the logger ``gradwire``: each reason of a bypass once, and failed
        sinks.
    sinks
        Receivers of every completed step; the ledger owns and closes them.
    at_exit
        Whether rank 0 prints the summary to standard error when the program ends.
    folder
        The folder in which rank 0 saves the ledger (``save``) at ``close``, or at the program's end without
        ``close``.

    Raises
    ------
    SpecError
        For an invalid rank, and a sink without ``write`` and ``close``.
    JobError
        For a folder that can't be written.
    """

    def __init__(
        self,
        rank: int,
        sinks: Sequence[Sink] = (),
        *,
        at_exit: bool = False,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        Source("the ledger's rank", "pass dist.get_rank()").read(rank, whole())
        for sink in sinks:
            if not all(callable(getattr(sink, name, None)) for name in ("write", "close")):
                raise SpecError(
                    f"expected a sink with write and close, got {sink!r}; pass JsonLines or TensorBoard"
                )
        self.rank = rank
        self._sinks = list(sinks)
        self._lost_sinks: list[str] = []
        self._reported: set[str] = set()
        self._steps, self._wall_s, self._step_began = 0, 0.0, perf_counter()
        self._ended, self._open = Tally(), Tally()
        self._lost, self._measured = LostBook(), list[tuple[str, ErrorSums]]()
        self._warnings: list[str] = []
        self._decided, self._deciding = list[Decided](), list[Decided]()
        self._counting = Lock()
        self._writing = Lock()  # held while sinks write; threads that only count never wait for it
        self._folder = None if folder is None or rank != 0 else Path(folder)
        if self._folder is not None:
            check_folder_writable("a ledger's folder", self._folder)
            atexit.register(_unless_forked, os.getpid(), self._save_once)
        if at_exit and rank == 0:
            atexit.register(_unless_forked, os.getpid(), self._print_summary)

    def exchanged(
        self,
        bucket: str,
        accounting: ExchangeCost,
        exposed_s: float = 0.0,
        gradient_nbytes: int | None = None,
        lost: ErrorSums | None = None,
    ) -> None:
        """Count one exchange of a bucket in the current step; a bucket has the same name in every step.

        ``exposed_s`` is the time for which the training thread waited, in seconds. ``gradient_nbytes`` is the
        number of bytes of float32 gradient that were averaged, by default the bytes that were sent, before
        encoding.
        """
        nbytes = int(accounting.raw_nbytes) if gradient_nbytes is None else gradient_nbytes
        counts = BucketCounts(1, nbytes, exposed_s, accounting)
        with self._counting:
            self._open.add_bucket(bucket, counts)
            if lost is not None:
                self._measured.append((bucket, lost))

    def bypassed(self, reason: str, bucket: str, nbytes: int) -> None:
        """Count a bucket's gradient that bypassed the codec. Rank 0 logs each reason once.

        Pass the same text for the same reason.
        """
        with self._counting:
            self._open.add_bypass(reason, BypassCounts(1, nbytes))
            first = reason not in self._reported
            self._reported.add(reason)
        if first:
            self._warn(
                f"compression did not run for {bucket} ({format_size(nbytes)}): {reason}; "
                "further cases are counted, not logged"
            )

    def decided(self, step: int, decision: PlanChoice) -> None:
        """Record a decision whose plan the run uses from ``step`` on."""
        reason, plan = f"from step {step} on, {decision.reason}", decision.plan.to_json()
        with self._counting:
            self._deciding.append(Decided(step, reason, plan, decision.step_s, decision.uncompressed_s))

    def warned(self, sentence: str) -> None:
        """Store a warning for the summary. The caller also issues the warning."""
        with self._counting:
            self._warnings.append(sentence)

    def end_step(self) -> None:
        """End the current step: add its counts to the totals, and write them to the sinks."""
        with self._writing:
            self._end(complete=True)

    def summary(self) -> Summary:
        """Return the totals, including a step that has not ended."""
        with self._counting:
            tally = Tally()
            tally.add(self._ended)
            tally.add(self._open)
            return Summary(
                self.rank,
                self._steps,
                self._wall_s,
                tally,
                tuple(self._lost_sinks),
                self._lost_so_far(),
                tuple(self._warnings),
                tuple(each.reason for each in (*self._decided, *self._deciding)),
            )

    def prometheus(self) -> str:
        """Return the counts in the text format of Prometheus, for the program's own endpoint.

        The sink ``PrometheusFile`` writes such a text to a file while training runs. After a resume, its
        counters start at 0, and those of this text continue.
        """
        totals = self.summary()
        errors = {name: each.last for name, each in totals.lost.buckets.items() if each.samples}
        return exposition(totals.rank, totals.steps, totals.wall_s, totals.tally, errors)

    def __repr__(self) -> str:
        total = self.summary().total
        counts = f"{self._steps} steps, {total.exchanges} exchanges, ratio {total.cost.ratio:.2f}"
        return f"<Ledger of rank {self.rank}: {counts}>"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def close(self) -> None:
        """Write the counts of a step that has not ended to the sinks, and close the sinks.

        Counting continues for ``summary`` and the report at exit, but nothing more is written to sinks. May
        be called twice.
        """
        with self._writing:
            with self._counting:
                rest = bool(self._open)
            if rest:
                self._end(complete=False)
            for sink in self._sinks:
                self._guarded(sink, sink.close)
            self._sinks = []
        self._save_once()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the counts to ``record.json`` in a folder, and their page to ``report.html``.

        Existing files are replaced. Raises ``JobError`` if the record can't be written.
        """
        record = ledger_record(self.state_dict(), self.summary())
        keep(Path(folder) / RECORD, record, page_of, quiet=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as plain dictionaries, numbers and strings, for ``torch.save`` and JSON."""
        with self._counting:
            state = {
                "version": _VERSION,
                "rank": self.rank,
                "steps": self._steps,
                "wall_s": self._wall_s,
                "ended": self._ended.state(),
                "open": self._open.state(),
                "lost": self._lost_so_far().state(),
                "decided": [asdict(each) for each in (*self._decided, *self._deciding)],
            }
        return sealed(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the counts with a result of ``state_dict``, and continue from there.

        States of version 1, without relative errors, can be loaded, too. Raises ``StateError``, and changes
        nothing, for an invalid state and for a different rank's state.
        """
        given = SOURCE.fields(state)
        version = given.get("version", one_of(*_READ))
        if (rank := given.get("rank", whole())) != self.rank:
            raise StateError(
                f"rank {self.rank}: expected the state of this rank's ledger, got the state of rank "
                f"{rank}; load the state of the same rank, or create a new ledger if the ranks have changed"
            )
        steps, wall_s = given.get("steps", whole()), float(given.get("wall_s", real(0.0)))
        ended, under_way = given.get("ended", Tally.of_state), given.get("open", Tally.of_state)
        lost = LostBook() if version == 1 else given.get("lost", LostBook.of_state)
        decided = [*given.get("decided", rows(Decided.of_state), ())]
        check_sealed(state, f"the counts of rank {self.rank}")
        with self._counting:
            self._steps, self._wall_s = steps, wall_s
            self._ended, self._open = ended, under_way
            self._lost, self._measured = lost, []
            self._decided, self._deciding = decided, []
            self._step_began = perf_counter()

    def _leave_out(self, seconds: float) -> None:
        """Exclude ``seconds`` from the current step's time, because training spent them on something else."""
        with self._counting:
            self._step_began += seconds

    def _lost_so_far(self) -> LostBook:
        lost = self._lost.copy()
        lost.count(self._measured)
        return lost

    def _end(self, complete: bool) -> None:
        """Add the step's counts to the totals, start a new step, and write the old one to the sinks."""
        with self._counting:
            now = perf_counter()
            tally, self._open = self._open, Tally()
            self._ended.add(tally)
            shares = self._lost.count(self._measured)
            self._measured = []
            wall_s = now - self._step_began
            decided, self._deciding = tuple(self._deciding), []
            self._decided += decided
            step = StepCounts(self.rank, self._steps + 1, complete, wall_s, tally, shares, decided)
            self._step_began = now
            self._wall_s += step.wall_s
            self._steps += complete
        for sink in self._sinks:
            self._guarded(sink, partial(sink.write, step), step.step)

    def _guarded(self, sink: Sink, act: Callable[[], None], step: int | None = None) -> None:
        """Call a sink. If it fails, report and drop it, because a ledger must not stop training."""
        try:
            act()
        except Exception as error:
            self._sinks = [each for each in self._sinks if each is not sink]
            where = "at close" if step is None else f"in step {step}"
            sentence = f"{sink!r} failed {where} and was dropped: {str(error) or type(error).__name__}"
            with self._counting:
                self._lost_sinks.append(sentence)
            with suppress(Exception):
                sink.close()
            self._warn(f"{sentence}; training continues without this sink")

    def _save_once(self) -> None:
        """Save to the folder of the constructor, if any, but only once; a failure is only logged."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        try:
            self.save(folder)
        except JobError as error:
            self._warn(f"the ledger was not saved: {error}")

    def _print_summary(self) -> None:
        text = f"{self.summary()}\n"
        with suppress(OSError, ValueError, AttributeError):  # standard error may be closed
            sys.stderr.write(text)
            sys.stderr.flush()

    def _warn(self, sentence: str) -> None:
        """Log a warning on rank 0. Without logging configuration, it appears on standard error."""
        if self.rank == 0:
            LOG.warning("%s", sentence)


def _unless_forked(process: int, act: Callable[[], None]) -> None:
    if os.getpid() == process:
        act()
