"""The JSON record of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from gradwire._native import target
from gradwire.fields import Source, line, of, real, rows, text, to_values, whole
from gradwire.machine import described
from gradwire.records import make_record
from gradwire_lab.job.equal_loss import equal_loss
from gradwire_lab.job.events import Epoch, RunResult
from gradwire_lab.job.options import JobOptions
from gradwire_lab.job.runs import D_SYNC, PS_SYNC, TORCHS, Run, parse_runs

SCHEMA = "gradwire.train/2"


def job_record(options: JobOptions, results: tuple[RunResult, ...]) -> dict[str, object]:
    """Return the record: times in seconds, sizes in bytes, accuracy 0 to 1; the options as given.

    ``topology`` is that of the testbed that the job runs in, None outside of one.
    """
    given = asdict(options)
    del given["exchange"]
    given |= to_values(options.exchange) | {
        "scale": options.scale or options.exchange.scale,
        "runs": [str(run) for run in options.runs],
        "out": str(options.out),
        "data_folder": None if options.data_folder is None else options.data_folder.name,
    }
    content = {
        "options": given,
        "topology": described(),
        "runs": [_describe_run(result, results, options) for result in results],
        "equal_loss": _describe_equal_loss(results),
    }
    return make_record(SCHEMA, content, target=target())


def read_results(record: Mapping[str, Any]) -> tuple[RunResult, ...]:
    """Return the results of a job whose record this is; times and losses that are null become NaN."""
    return _SOURCE.fields(record).get("runs", rows(_read_run))


def _read_run(row: object) -> RunResult:
    given = _SOURCE.fields(row)
    return RunResult(
        run=given.get("run", _run),
        steps=given.get("steps", whole()),
        epochs=given.get("epochs", rows(_EPOCH)),
        compute_s=given.get("compute_s_per_step", _number),
        codec_s=given.get("codec_s_per_step", _number),
        exposed_s=given.get("exposed_s_per_step", _number),
        raw_nbytes=given.get("raw_nbytes", whole()),
        wire_nbytes=given.get("wire_nbytes", whole()),
        weights_sha256=given.get("weights_sha256", line),
        decided=given.get("decided", rows(_decided), ()),
    )


def _number(value: object) -> float:
    return math.nan if value is None else real(finite=False)(value)


def _run(words: object) -> Run:
    (run,) = parse_runs(line(words))
    return run


def _decided(row: object) -> tuple[int, str]:
    given = _SOURCE.fields(row)
    return given.get("step", whole()), given.get("reason", text)


_SOURCE = Source("a record of training", "write it anew with 'gradwire train'")
_EPOCH = of(Epoch, **{each.name: _number for each in fields(Epoch) if each.type == "float"})


def speed_up(result: RunResult, results: tuple[RunResult, ...], baseline: Run) -> float | None:
    """Return how often ``result`` trains while the run ``baseline`` does once; None where it is not there."""
    times = [other.train_s for other in results if other.run == baseline]
    return times[0] / result.train_s if times else None


def _describe_run(
    result: RunResult, results: tuple[RunResult, ...], options: JobOptions
) -> dict[str, object]:
    return {
        "run": str(result.run),
        "label": result.run.label,
        "plan": None if result.run.method in TORCHS else to_values(options.plan(result.run)),
        "decided": [{"step": step, "reason": reason} for step, reason in result.decided],
        "diverged": result.diverged,
        "accuracy": result.accuracy,
        "steps": result.steps,
        "train_s": result.train_s,
        "step_s": result.step_s,
        "compute_s_per_step": result.compute_s,
        "codec_s_per_step": result.codec_s,
        "exposed_s_per_step": result.exposed_s,
        "raw_nbytes": result.raw_nbytes,
        "wire_nbytes": result.wire_nbytes,
        "ratio": result.ratio,
        "speed_up_over_ps_sync": speed_up(result, results, PS_SYNC),
        "speed_up_over_d_sync": speed_up(result, results, D_SYNC),
        "weights_sha256": result.weights_sha256,
        "epochs": [asdict(epoch) for epoch in result.epochs],
    }


def _describe_equal_loss(results: tuple[RunResult, ...]) -> dict[str, object] | None:
    """Return the loss to reach and, for each run, steps and seconds to it; None where nothing is compared."""
    equal = equal_loss(results)
    if equal is None:
        return None
    reached = {
        str(run): None if point is None else dict(zip(("steps", "train_s"), point, strict=True))
        for run, point in equal.reached.items()
    }
    return {"baseline": str(equal.baseline.run), "held_out_loss": equal.target, "reached": reached}
