"""A finished comparison, made up, for what shows and keeps results."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire_lab.job.options import JobOptions, Run, comparison
from gradwire_lab.job.record import Epoch, RunResult


def make_result(run: Run, step_s: float, ratio: float) -> RunResult:
    epochs = tuple(Epoch(n, 1 - 0.5**n, 0.5**n, 10 * n * step_s, 10 * n, 2 * 0.5**n) for n in (1, 2, 3))
    return RunResult(
        run=run,
        steps=30,
        epochs=epochs,
        compute_s=0.25 * step_s,
        codec_s=0.0 if ratio == 1 else 0.125 * step_s,
        exposed_s=0.5 * step_s,
        raw_nbytes=30_000_000,
        wire_nbytes=round(30_000_000 / ratio),
        weights_sha256="ab" * 32,
    )


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    return JobOptions(runs=comparison("quantize:8"), out=tmp_path / "out", link="100mbit")


@pytest.fixture
def on_ddp() -> tuple[RunResult, ...]:
    """Return results of a comparison with DDP."""
    figures = [(0.4, 1.0), (0.2, 2.0), (0.1, 4.0), (0.08, 4.0)]
    runs = comparison("fp8", "ddp")
    return tuple(make_result(run, *each) for run, each in zip(runs, figures, strict=True))


@pytest.fixture
def results(options: JobOptions) -> tuple[RunResult, ...]:
    figures = [(0.8, 1.0), (0.2, 1.0), (0.1, 4.0), (0.05, 4.0)]
    return tuple(
        make_result(run, step_s, ratio) for run, (step_s, ratio) in zip(options.runs, figures, strict=True)
    )
