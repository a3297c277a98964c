"""Trainings as ``gradwire train`` performs them: processes of this machine over paced links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Training:
    """A job: its runs, such as ``sync:quantize:8``, and what they have in common."""

    runs: tuple[str, ...]
    model: str = "mlp"
    link: str | None = None
    epochs: int = 8
    max_steps: int | None = None
    lr: float = 0.03
    momentum: float = 0.9
    seed: int = 0
    correction: str = "none"
    pipeline: int = 2
    warmup_epochs: int = 0


def train(training: Training) -> list[Mapping[str, Any]]:
    """Train with four workers on scikit-learn's digits; return accuracies, times, and bytes of each run.

    Times are seconds of a step: all of it, computation, codecs, and what the exchange adds. Raises
    ``GradwireError``.
    """
    from gradwire.job.data import load
    from gradwire.job.launch import perform_local
    from gradwire.job.options import JobOptions, check, check_data
    from gradwire.job.runs import parse_runs
    from gradwire.plan import Plan

    options = JobOptions(
        parse_runs(",".join(training.runs)),
        Path(),
        model=training.model,
        exchange=Plan(pipeline=training.pipeline),
        link=training.link,
        correction=training.correction,
        warmup_epochs=training.warmup_epochs,
        epochs=training.epochs,
        max_steps=training.max_steps,
        lr=training.lr,
        momentum=training.momentum,
        seed=training.seed,
        overwrite=True,
    )
    check(options)
    check_data(options, load(options.data))
    results = perform_local(options, lambda _event: None)
    return [
        {
            "epochs": [asdict(epoch) for epoch in result.epochs],
            "accuracy": result.accuracy,
            "steps": result.steps,
            "step_s": result.step_s,
            "compute_s": result.compute_s,
            "codec_s": result.codec_s,
            "exposed_s": result.exposed_s,
            "raw_nbytes": result.raw_nbytes,
            "wire_nbytes": result.wire_nbytes,
        }
        for result in results
    ]
