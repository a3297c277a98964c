"""The JSON record of a job."""

from __future__ import annotations

import json
from dataclasses import asdict

from gradwire.job.events import Epoch, RunResult
from gradwire.job.options import JobOptions
from gradwire.job.runs import D_SYNC, PS_SYNC, Run
from gradwire.machine import describe_machine, describe_versions
from gradwire.testbed.current import described

SCHEMA = "gradwire.train/1"
"""Changes whenever a field changes its name, unit or meaning."""


def make_record(options: JobOptions, results: tuple[RunResult, ...]) -> dict[str, object]:
    """Return the record: times in seconds, sizes in bytes, accuracy 0 to 1; the options as given.

    ``topology`` is that of the testbed that the job runs in, None outside of one.
    """
    given = asdict(options)
    del given["exchange"]
    given |= json.loads(options.exchange.to_json()) | {
        "runs": [str(run) for run in options.runs],
        "out": str(options.out),
        "data_folder": None if options.data_folder is None else options.data_folder.name,
    }
    return {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "options": given,
        "topology": described(),
        "runs": [_describe_run(result, results, options) for result in results],
    }


def speed_up(result: RunResult, results: tuple[RunResult, ...], baseline: Run) -> float | None:
    """Return how often ``result`` trains while the run ``baseline`` does once; None where it is not there."""
    times = [other.train_s for other in results if other.run == baseline]
    return times[0] / result.train_s if times else None


def to_json(record: dict[str, object]) -> bytes:
    """Return the record as readable JSON."""
    return (json.dumps(record, indent=2, allow_nan=False) + "\n").encode()


def _describe_run(
    result: RunResult, results: tuple[RunResult, ...], options: JobOptions
) -> dict[str, object]:
    return {
        "run": str(result.run),
        "label": result.run.label,
        "plan": json.loads(options.plan(result.run).to_json()),
        "diverged": result.diverged,
        "accuracy": result.accuracy,
        "steps": result.steps,
        "train_s": result.train_s,
        "step_s": result.step_s,
        "compute_s_per_step": result.compute_s,
        "codec_s_per_step": result.codec_s,
        "exposed_s_per_step": result.exposed_s,
        "raw_nbytes": result.raw_nbytes,
        "sent_nbytes": result.sent_nbytes,
        "ratio": result.ratio,
        "speed_up_over_ps_sync": speed_up(result, results, PS_SYNC),
        "speed_up_over_d_sync": speed_up(result, results, D_SYNC),
        "weights_sha256": result.weights_sha256,
        "epochs": [_describe_epoch(epoch) for epoch in result.epochs],
    }


def _describe_epoch(epoch: Epoch) -> dict[str, object]:
    described = asdict(epoch)
    if epoch.diverged:  # JSON has no word for it
        described["loss"] = None
    return described
