"""Predicted gains over plain DDP and PyTorch's bf16 hook, by model, link rate, and number of hosts.

The planner predicts steps from costs measured once on one core, and with ``--against`` also the steps in
records of ``training-speed``, to show its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, cast

from gradwire.cli.lists import between_commas
from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire.records import read_object
from gradwire.tables import Column, Table, figure
from gradwire.units import format_duration, parse_rate
from gradwire_lab.columns import Columns, error_of, ms_of, table_of, text_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    FOLDER,
    Cell,
    CheckedOptions,
    Experiment,
    Report,
    Row,
    cells_of,
    grouped,
    option,
    select,
)
from gradwire_lab.experiments.record import RECORD, read_fields
from gradwire_lab.experiments.speeds import ALONE, HOOK, JUDGE
from gradwire_lab.experiments.training_speed import EXPERIMENT as TRAINING_SPEED

if TYPE_CHECKING:  # these modules import torch, which takes seconds
    from gradwire.planner import PlanRequest
    from gradwire.planner.predict import Predictor, Ranking
    from gradwire.timing.environment import CodecCost, Environment
    from gradwire.timing.line import HostCost

REMEDY = "measure it again"


@dataclass(frozen=True)
class Model:
    """A model for the calculator: its parameters, and the assumed seconds of computation in a step."""

    count: int
    compute_s: float


MODELS = {
    "ResNet-50": Model(25_600_000, 0.15),
    "GPT-2": Model(124_000_000, 0.3),
    "1B": Model(1_000_000_000, 1.2),
}
"""Typical models with an assumed computation.

The computation is about that of one data-centre GPU with 64 images or 16 sequences of 1,024 tokens, or with 8
sequences for the largest model. The gain depends on the computation.
"""
TASK_COUNTS = {"mnist-mlp": 648_010, "wide-mlp": 18_423_050, "gpt": 10_892_800, "cifar-cnn": 1_072_330}
"""The numbers of parameters of the tasks of ``training-speed``, on MNIST and CIFAR-10."""
OTHER_COUNTS = {
    ("mnist-mlp", "digits"): 288_010,
    ("wide-mlp", "digits"): 15_842_570,
    ("cifar-cnn", "CIFAR-100"): 1_095_460,
}
"""The numbers of parameters that differ from ``TASK_COUNTS``, by task and data."""
FORWARD_SHARE = 1 / 3
"""The forward pass's share of computation. Backward takes about twice as long."""
BUCKET_NBYTES = 25 << 20
"""The size of DDP's buckets, which ``attach`` doesn't change."""
LATENCY = "50us"
"""The assumed latency of every link: the latency of a small message on ordinary Ethernet."""
CODECS = ("bf16", "fp8", "ecsq:0.25")
"""The codecs that docs/which_codec.md recommends for any model, from the most precise to the fewest bytes."""
PLANS = {"fp8 on DDP": ("fp8", "ring"), "ecsq:0.5 on DDP": ("ecsq:0.5", "pairwise")}
"""The fixed plans of ``training-speed`` that are also predicted, with their codecs and algorithms."""
PASSES = 5
"""The number of measurements of the costs, seconds apart."""
CALIBRATION, PREDICTION, CHECK = "calibration", "prediction", "check"
"""The kinds of rows: measured costs, a prediction of the calculator, and a prediction of a measured step."""
KEEP_DDP, KEEP_HOOK = "don't compress", "bf16 hook"
CHECKS: Columns[Row] = (
    (Column.of_text("task"), text_of("task")),
    (Column("hosts"), text_of("hosts")),
    (Column.of_text("method"), text_of("method")),
    (Column("measured", "ms"), ms_of("measured_s")),
    (Column("predicted", "ms"), ms_of("predicted_s")),
    (Column("error", "%"), lambda row: f"{100 * error_of(row):+.0f}"),
)


def _rates(text: str) -> tuple[str, ...]:
    rates = tuple(dict.fromkeys(between_commas(text)))
    for rate in rates:
        parse_rate(rate)
    return rates


@dataclass(frozen=True)
class GainOptions(CheckedOptions):
    """The models, link rates, and numbers of hosts, and a folder with records of ``training-speed``."""

    models: tuple[str, ...] = option(tuple(MODELS), "models", known=MODELS)
    rates: tuple[str, ...] = option(
        ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit"), "link rates to compare", read=_rates
    )
    hosts: tuple[int, ...] = option((2, 4, 8, 16), "number of hosts, or several", value="N", least=2)
    against: Path | None = option(
        None, "folder of training-speed records to predict, too", shown="none", value=FOLDER
    )


def cells(options: GainOptions) -> list[Cell]:
    """Return the calibration, a prediction per model, rate, and number of hosts, and the steps to check."""
    measured = [] if options.against is None else list(_measured(options.against))
    return [
        {"part": CALIBRATION, "threads": 1},
        *cells_of({"part": PREDICTION}, model=options.models, rate=options.rates, hosts=options.hosts),
        *measured,
    ]


def _measured(folder: Path) -> Iterator[Cell]:
    """Yield the measured step of each predictable method as a cell, for each record of CPUs in a folder."""
    for path in sorted(folder.glob(f"**/{RECORD}")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if read_object(text, str(path)).get("schema") != TRAINING_SPEED.schema:
            continue
        record = read_fields(path, TRAINING_SPEED, REMEDY)
        if record["options"]["device"] != "cpu":
            continue  # the calibration has no costs of GPUs
        by_network: dict[tuple[str, int, str], list[Row]] = {}
        for row in record["rows"]:
            by_network.setdefault((row["task"], row["hosts"], row["rate"]), []).append(row)
        for (task, hosts, rate), rows in by_network.items():
            methods = grouped(rows, "method")
            steps_s = {name: fmean(row["step_s"] for row in own) for name, own in methods.items()}
            common = {"part": CHECK, "task": task, "data": rows[0]["data"], "hosts": hosts, "rate": rate}
            for method in (JUDGE, HOOK, *PLANS):
                if {method, ALONE} <= steps_s.keys():
                    times = {"compute_s": steps_s[ALONE], "measured_s": steps_s[method]}
                    yield {**common, "method": method, **times}


def run(options: GainOptions, cells: Sequence[Cell], before: Sequence[Row], report: Report) -> None:
    """Measure the costs on this machine, then predict the other cells from these costs."""
    known = next((row["request"] for row in before if row["part"] == CALIBRATION), None)
    for cell in cells:
        if cell["part"] == CALIBRATION:
            known = calibrated(max(options.hosts))
            report({**cell, "request": known})
        elif cell["part"] == PREDICTION:
            model = MODELS[cell["model"]]
            report({**cell, "compute_s": model.compute_s, **predicted(known, model, cell)})
        else:
            report({**cell, "predicted_s": predicted_step_s(known, cell)})


def calibrated(most_hosts: int) -> dict[str, Any]:
    """Return a request with the shortest costs of several passes: other programs only add time."""
    from gradwire.machine import cores
    from gradwire.planner import PlanRequest
    from gradwire.planner.calibration import measure_codecs, measure_host, synthetic_gradients

    names = list(dict.fromkeys([*CODECS, *(codec for codec, _ in PLANS.values())]))
    largest = max(model.count for model in MODELS.values())
    request = PlanRequest.of(largest, most_hosts, rate="1gbit", latency=LATENCY, codecs=names)
    samples = synthetic_gradients(largest)
    costs: list[Mapping[str, CodecCost]] = []
    host: list[HostCost] = []
    for _ in range(PASSES):
        costs.append(measure_codecs(request.encodings, samples, most_hosts, 1, request.found_line))
        host.append(measure_host(cores(), 1))
    shortest = {spec: _least([each[spec] for each in costs]) for spec in costs[0]}
    return replace(request, host=_least(host), costs=shortest, shared_machine=False).to_values()


def _least(found: Sequence[Any]) -> Any:
    """Merge several structures of costs into one structure with the smallest value of each number."""
    first = found[0]
    if isinstance(first, tuple):
        return tuple(map(_least, zip(*found, strict=True)))
    if is_dataclass(first):
        return replace(
            cast("Any", first),
            **{each.name: _least([getattr(one, each.name) for one in found]) for each in fields(first)},
        )
    return min(found) if isinstance(first, float) else first


def predicted(values: Any, model: Model, cell: Cell) -> dict[str, Any]:
    """Return the predicted steps of DDP, of its bf16 hook, and of the chosen plan, in seconds."""
    from gradwire.planner.baselines import Baselines

    request, environment = _placed(values, model.count, model.compute_s, cell)
    ranking, baselines = _chosen(request, environment), Baselines(request.workload, environment)
    return {
        "ddp_s": baselines.plain_s(cell["hosts"]),
        "hook_s": baselines.hook_s(cell["hosts"]),
        "step_s": ranking.prediction.step_s,
        "codec": str(ranking.plan.codec),
        "algorithm": ranking.plan.algorithm,
        "uncertainty": ranking.uncertainty,
    }


def predicted_step_s(values: Any, cell: Cell) -> float:
    """Return the predicted step time of a method that was measured on hosts that share this machine."""
    from gradwire.planner.baselines import Baselines

    shared, hosts = {**values, "shared_machine": True}, cell["hosts"]
    count = OTHER_COUNTS.get((cell["task"], cell["data"]), TASK_COUNTS[cell["task"]])
    request, environment = _placed(shared, count, cell["compute_s"], cell)
    baselines = Baselines(request.workload, environment)
    if cell["method"] in (HOOK, JUDGE):
        return baselines.hook_s(hosts) if cell["method"] == HOOK else baselines.plain_s(hosts)
    codec, algorithm = PLANS[cell["method"]]
    plan = Plan(parse(codec), algorithm, bucket_nbytes=BUCKET_NBYTES)
    return _predictor(request, environment).predict(plan).step_s


def _placed(values: Any, count: int, compute_s: float, cell: Cell) -> tuple[PlanRequest, Environment]:
    """Return the planner's request and environment for a model in a cell's network, with measured costs."""
    from gradwire.planner import PlanRequest
    from gradwire.planner.environment import measure

    times = {"forward_s": FORWARD_SHARE * compute_s, "backward_s": (1 - FORWARD_SHARE) * compute_s}
    place = {"model": count, "hosts": cell["hosts"], "rate": cell["rate"], **times}
    request = PlanRequest.from_values({**values, **place})
    return request, measure(request)


def _chosen(request: PlanRequest, environment: Environment) -> Ranking:
    """Return the ranking of the plans for DDP's buckets, with the codecs that any model tolerates."""
    from gradwire.planner.candidates import Space
    from gradwire.planner.predict import choose, uncertainty_of

    codecs, buckets = tuple(map(parse, CODECS)), (BUCKET_NBYTES,)
    space = Space(codecs, request.all_algorithms, buckets_nbytes=buckets, whole=False)
    predictor = _predictor(request, environment)
    found = choose(predictor, space)
    return choose(predictor, space, uncertainty_of(found, environment))


def _predictor(request: PlanRequest, environment: Environment) -> Predictor:
    from gradwire.planner.exchange_times import Family
    from gradwire.planner.predict import Predictor

    return Predictor(request.workload, request.hosts, Family(environment))


def answer(row: Row) -> str:
    """Return a prediction as an answer; differences within the predictions' uncertainty are no gains."""
    over_ddp, over_hook, hook_over_ddp = gains_of(row)
    least = 1 / (1 - row["uncertainty"])
    if row["codec"] != "identity" and over_hook > least and over_ddp > least:
        return f"{over_ddp:.1f}x ({over_hook:.1f}x)"
    return f"{KEEP_HOOK}, {hook_over_ddp:.1f}x" if hook_over_ddp > least else KEEP_DDP


def gains_of(row: Row) -> tuple[float, float, float]:
    """Return the speed-ups of the chosen plan over DDP and over the bf16 hook, and of the hook over DDP."""
    return row["ddp_s"] / row["step_s"], row["hook_s"] / row["step_s"], row["ddp_s"] / row["hook_s"]


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a table per model, the measured costs, and the errors of checked predictions."""
    parts: list[str | Table] = []
    for name, own in grouped(select(rows, part=PREDICTION), "model").items():
        count, compute = MODELS[name].count, format_duration(own[0]["compute_s"])
        size = f"{count / 1e6:g} million" if count < 10**9 else f"{count / 1e9:g} billion"
        hosts = [Column.of_text(f"{each} hosts") for each in grouped(own, "hosts")]
        body = [(rate, *map(answer, of_rate)) for rate, of_rate in grouped(own, "rate").items()]
        title = f"{name}, {size} parameters, {compute} of computation in a step:"
        parts += [title, "", Table((Column.of_text("link"), *hosts), body), ""]
    for row in select(rows, part=CALIBRATION):
        parts += ["Measured on one core of this machine:", "", _costs(row["request"]), ""]
    if checks := select(rows, part=CHECK):
        errors = [abs(error_of(row)) for row in checks]
        title = (
            f"Predicted and measured steps in testbeds: the median error is {100 * median(errors):.0f} %, "
            f"the largest {100 * max(errors):.0f} %."
        )
        parts += [title, "", table_of(CHECKS, checks), ""]
    return parts


def _costs(values: Any) -> Table:
    """Return the measured costs of the codecs on one host's gradient, per float32 byte."""
    columns = [Column.of_text("codec"), Column("bytes", "of 4")]
    columns += [Column(name, "GB/s") for name in ("encode", "decode and add")]
    body = []
    for spec, cost in values["costs"].items():
        point = cost["points"][0]
        speeds = (4e-9 / point[name] for name in ("encode_s", "decode_add_s"))
        body.append((spec, f"{point['nbytes']:.2f}", *map(figure, speeds)))
    return Table(columns, body)


EXPERIMENT = Experiment(
    name="gain",
    question="how much faster are steps predicted to be, by rate and hosts?",
    answer=Answer("8 hosts", ("link",)),
    options=GainOptions,
    cells=cells,
    run=run,
    table=table,
)
