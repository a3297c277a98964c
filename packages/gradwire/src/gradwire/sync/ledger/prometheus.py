"""A ledger in the text format of Prometheus, as a string and as a file that is replaced while training runs.

Counters of a file are sums since the start of the process; those of ``Ledger.prometheus`` continue after a
resume. A bucket is a label, so the number of buckets is limited: Prometheus stores a time series for every
value of a label.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TypeVar

from gradwire.errors import SpecError, shown
from gradwire.files import check_folder_writable, replace_file
from gradwire.sync.ledger.counts import BucketCounts, BypassCounts, Tally
from gradwire.sync.ledger.sinks import StepCounts

MOST_LABELS = 20
"""The number of buckets, and of reasons, that have their own time series; the others are summed.

The first to occur have their own, because a counter must not move from one label to another.
"""
OTHERS = "(others)"
EVERY_S = 15.0  # between two writes of the file, which Prometheus reads every 15 s to 60 s

_Counts = TypeVar("_Counts", BucketCounts, BypassCounts)
_BUCKET_COUNTERS = (
    ("exchanges", "Exchanges of the bucket.", "exchanges"),
    ("gradient_bytes", "Bytes of averaged gradients.", "gradient_nbytes"),
    ("raw_bytes", "Bytes of floats that this rank sent, before encoding.", "raw_nbytes"),
    ("wire_bytes", "Bytes of sent frames, after encoding.", "wire_nbytes"),
    ("codec_seconds", "Seconds of encoding and decoding.", "codec_s"),
    ("wait_seconds", "Seconds of waiting for frames.", "wait_s"),
    ("exposed_seconds", "Seconds for which training waited.", "exposed_s"),
    ("exchange_seconds", "Seconds of exchanges, overlapped or not.", "exchange_s"),
    ("nonfinite_exchanges", "Exchanges with NaN or infinity.", "nonfinite"),
)
"""The name and meaning of each counter, and its name in ``BucketCounts.figures``."""
_BYPASS_COUNTERS = (
    ("bypasses", "Gradients that bypassed the codec.", "count"),
    ("bypassed_bytes", "Bytes of gradients that bypassed the codec.", "nbytes"),
)


def exposition(
    rank: int, steps: int, wall_s: float, tally: Tally, relative_errors: Mapping[str, float]
) -> str:
    """Return counts in the text format of Prometheus, with the last relative error of every bucket."""
    own = f'rank="{rank}"'
    buckets = _limited(tally.buckets, BucketCounts())
    figures: dict[str, dict[str, float]] = {
        f'{own},bucket="{_escaped(name)}"': each.figures() for name, each in buckets.items()
    }
    bypasses = _limited(tally.bypasses, BypassCounts())
    reasons: dict[str, dict[str, float]] = {
        f'{own},reason="{_escaped(name)}"': asdict(each) for name, each in bypasses.items()
    }
    known = [name for name in buckets if name in relative_errors]
    errors = {f'{own},bucket="{_escaped(name)}"': relative_errors[name] for name in known}
    lines = [
        *_family("steps_total", "counter", "Steps that ended.", {own: steps}),
        *_family("wall_seconds_total", "counter", "Seconds of ended steps.", {own: wall_s}),
    ]
    for counters, rows in ((_BUCKET_COUNTERS, figures), (_BYPASS_COUNTERS, reasons)):
        for name, meaning, key in counters:
            samples = {labels: row[key] for labels, row in rows.items()}
            lines += _family(f"{name}_total", "counter", meaning, samples)
    lines += _family("relative_error", "gauge", "Relative error of encoding, last measured.", errors)
    return "".join(f"{line}\n" for line in lines)


def _limited(counts: Mapping[str, _Counts], none: _Counts) -> dict[str, _Counts]:
    """Return the first ``MOST_LABELS`` counts by label, and the sum of all later counts as ``OTHERS``."""
    kept = dict(islice(counts.items(), MOST_LABELS))
    others = list(islice(counts.values(), MOST_LABELS, None))
    return kept | ({OTHERS: sum(others, none)} if others else {})


def _family(name: str, kind: str, meaning: str, samples: Mapping[str, float]) -> list[str]:
    """Return the lines of one metric, from its samples by label, or an empty list without a sample."""
    head = [f"# HELP gradwire_{name} {meaning}", f"# TYPE gradwire_{name} {kind}"]
    rows = [f"gradwire_{name}{{{labels}}} {_number(figure)}" for labels, figure in samples.items()]
    return head + rows if rows else []


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(figure: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text := repr(figure), text)


class PrometheusFile:
    """A sink that keeps a file in the text format of Prometheus up to date, for node_exporter's collector.

    The file is replaced atomically at most every ``every_s`` seconds, at the end of a step, and at ``close``.
    ``docs/accounting.md`` has the names of the metrics. Each rank of a host needs its own file.

    Parameters
    ----------
    path
        The file, whose name must end in ``.prom``, in a folder that exists and is writable.
    every_s
        The least time between two writes, in seconds.

    Raises
    ------
    SpecError
        For a path that doesn't end in ``.prom``, because the collector ignores it, or whose folder doesn't
        exist.
    JobError
        For a folder that can't be written.
    """

    def __init__(self, path: str | os.PathLike[str], every_s: float = EVERY_S) -> None:
        self.path = Path(path)
        if self.path.suffix != ".prom":
            raise SpecError(
                f"expected a file that ends in .prom, got {shown(os.fspath(path))}; rename the file"
            )
        if not self.path.parent.is_dir():
            raise SpecError(f"expected a folder at {self.path.parent}, got none; create the folder")
        check_folder_writable("PrometheusFile", self.path.parent)
        self._every_s, self._next_s = every_s, 0.0
        self._rank: int | None = None
        self._steps, self._wall_s, self._tally = 0, 0.0, Tally()
        self._errors: dict[str, float] = {}

    def write(self, step: StepCounts) -> None:
        """Add the step, and replace the file if ``every_s`` seconds have passed. Raises ``OSError``."""
        self._rank = step.rank
        self._steps += step.complete
        self._wall_s += step.wall_s
        self._tally.add(step.tally)
        self._errors |= {name: each for name, each in step.lost.buckets.items() if each is not None}
        if monotonic() >= self._next_s:
            self._replace()

    def close(self) -> None:
        """Write the last counts. Repeated calls are allowed. Raises ``OSError``."""
        if self._rank is not None:
            self._replace()

    def _replace(self) -> None:
        assert self._rank is not None, "a step precedes"
        text = exposition(self._rank, self._steps, self._wall_s, self._tally, self._errors)
        replace_file(self.path, text.encode())
        self._next_s = monotonic() + self._every_s

    def __repr__(self) -> str:
        return f"PrometheusFile({os.fspath(self.path)!r})"
