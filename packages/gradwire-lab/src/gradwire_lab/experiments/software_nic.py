"""Step times of training over software NICs, compared with predictions that include packet headers.

NICs merge segments, or send one packet per segment. The prediction is the computation of all hosts at the
same time plus the replay of the exchange, over the link as hosts behind NICs see it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.codecs import parse
from gradwire.deferred import torch
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.tables import Column, Table
from gradwire.timing.replay import replay
from gradwire_lab.columns import Columns, error_of, ms_of, table_of, text_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    FOLDER,
    Cell,
    CheckedOptions,
    Experiment,
    Row,
    cells_of,
    option,
    select,
)
from gradwire_lab.experiments.hosts import check_networks, measured_by
from gradwire_lab.experiments.hosts.training import flat

if TYPE_CHECKING:  # these modules import torch, which only the hosts need
    from gradwire.timing.line import Line
    from gradwire_lab.experiments.hosts.ranks import Ranks
    from gradwire_lab.experiments.tasks import TrainingTask

LIBRARY, MERGED, SINGLE = "library", "NICs", "NICs, single segments"
WAYS = {LIBRARY: "", MERGED: "{}", SINGLE: "{} --no-merge"}
"""The place of the codec, and the arguments of ``gradwire nic`` for this place."""
SEGMENT_NBYTES = 1 << 18
WARM_STEPS = 150
SAMPLES = 3
"""The number of batches per rank before and after the timed steps, whose gradients determine the ratio."""
BUDGET_S = 8.0
"""The time budget of a cell's 7 to 40 timed steps, in seconds."""
PACING_S = 1.2 / 1024
"""The longest transmission that Linux passes to a NIC in one piece: 1/1024 s at 1.2 times the rate."""
GOOD = 0.05
COLUMNS: Columns[Row] = (
    (Column("rate"), text_of("rate")),
    (Column("MTU"), text_of("mtu")),
    (Column.of_text("codec in"), text_of("way")),
    (Column("ratio"), lambda row: f"{row['ratio']:.2f}"),
    (Column("measured", "ms"), ms_of("measured_s")),
    (Column("fastest", "ms"), ms_of("fastest_s")),
    (Column("slowest", "ms"), ms_of("slowest_s")),
    (Column("predicted", "ms"), ms_of("predicted_s")),
    (Column("error", "%"), lambda row: f"{100 * error_of(row):+.1f}"),
    (Column("speed-up"), lambda row: f"{row['library_s'] / row['measured_s']:.2f}x"),
)
NOTE = (
    "Ratio: bytes of values per byte of encoding, without headers. Speed-up: over the library's codec at "
    "the same rate and MTU."
)


@dataclass(frozen=True)
class SoftwareNicOptions(CheckedOptions):
    """The options: networks, the codec and its scale, and the folder of MNIST."""

    hosts: int = option(4, "number of hosts")
    rates: tuple[str, ...] = option(("25mbit", "100mbit", "200mbit"), "link rates to compare")
    mtus: tuple[int, ...] = option((1400, 9000), "MTU of each link")
    codec: str = option("inceptionn:2^-10", "codec, for the NICs and the library", value="SPEC")
    scale: str | None = option(
        "auto", "omit the scale of each frame", name="--unscaled", is_switch=True, read=lambda _: None
    )
    data_dir: Path | None = option(None, "folder of the data set (MNIST)", shown="digits", value=FOLDER)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks([(self.hosts, rate) for rate in self.rates])
        Plan(offload=self.codec, scale=self.scale)


def cells(options: SoftwareNicOptions) -> list[Cell]:
    """Return a cell for each rate, MTU, and place of the codec."""
    common = {"hosts": options.hosts, "codec": options.codec, "scale": options.scale}
    found = cells_of(common, rate=options.rates, mtu=options.mtus, way=WAYS)
    return [{**cell, "nic": WAYS[cell["way"]].format(options.codec)} for cell in found]


def _given(options: SoftwareNicOptions) -> dict[str, str]:
    return {} if options.data_dir is None else {"data_dir": str(options.data_dir)}


def measure(ranks: Ranks, cells: Sequence[Cell], data_dir: str | None = None) -> None:
    """Train and predict with the only cell of a network, as one of its ranks."""
    from gradwire_lab.experiments.methods import computation
    from gradwire_lab.experiments.tasks import Files, mnist_mlp

    (cell,) = cells
    plan, folder = plan_of(cell), None if data_dir is None else Path(data_dir)
    tasks = [mnist_mlp(rank, ranks.world, Files(folder)) for rank in range(ranks.world)]
    task = tasks[ranks.rank]
    _warm_up(task, tasks[0])
    before = [_gradients(task, each.batches) for each in tasks]
    seconds = _steps_s(ranks, task, plan)
    after = [_gradients(task, each.batches) for each in tasks]
    gradients = [torch.cat(pair) for pair in zip(before, after, strict=True)]
    *computing_s, gradient = computation(task)
    environment = ranks.environment([plan.encoding], SEGMENT_NBYTES, gradients)
    if environment is None:
        return
    ratio = ring_ratio(plan, gradients)
    if plan.offload is not None:
        line = behind_nics(environment.line, ratio, cell["mtu"], merge=cell["way"] == MERGED)
        environment = replace(environment, line=line)
    exchange = replay("ring", ranks.world, gradient.numel(), SEGMENT_NBYTES, str(plan.encoding), environment)
    figures = {
        "measured_s": statistics.median(seconds),
        "fastest_s": min(seconds),
        "slowest_s": max(seconds),
        "predicted_s": sum(computing_s) + exchange.total_s,
        "computing_s": sum(computing_s),
        "line_busy_s": exchange.line_busy_s,
        "ratio": ratio,
        "line_nbytes_per_s": environment.line.nbytes_per_s,
    }
    ranks.report(cell, figures)


def behind_nics(line: Line, ratio: float, mtu_nbytes: int, *, merge: bool = True) -> Line:
    """Return the link as hosts behind NICs see it, with headers and without processing time."""
    from gradwire.planner.encodings import MOST_AT_ONCE_NBYTES, packet_ratio

    at_once_nbytes = min(MOST_AT_ONCE_NBYTES, PACING_S * ratio * line.nbytes_per_s)
    times = packet_ratio(ratio, mtu_nbytes, merge=merge, at_once_nbytes=at_once_nbytes)
    return replace(line, nbytes_per_s=times * line.nbytes_per_s, burst_nbytes=times * line.burst_nbytes)


def plan_of(cell: Cell) -> Plan:
    """Return a cell's plan: the codec encodes on the hosts or in NICs."""
    codec, parts = parse(cell["codec"]), {"segment_nbytes": SEGMENT_NBYTES, "scale": cell["scale"]}
    return Plan(codec, **parts) if cell["way"] == LIBRARY else Plan(offload=codec, **parts)


def _warm_up(task: TrainingTask, first: TrainingTask) -> None:
    """Train all ranks on the same batches without the network: gradients change fastest at first."""
    optimizer = task.optimizer(task.model)
    for _ in range(WARM_STEPS):
        optimizer.zero_grad()
        task.loss(task.model, next(first.batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _steps_s(ranks: Ranks, task: TrainingTask, plan: Plan) -> list[float]:
    """Return the step times of a plan, trained over new connections."""
    from gradwire.local import DSync

    with ranks.linked(tos=plan.tos) as link:
        method = DSync(task.model, task.optimizer(task.model), plan, group=link)

        def step() -> None:
            batch = next(task.batches)
            method.step(lambda: task.loss(task.model, batch))

        step()  # untimed: the first step connects
        return ranks.repeat_s(step, budget_s=BUDGET_S, least=7, most=40)


def _gradients(task: TrainingTask, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the concatenated gradients of some batches of a rank, at this rank's weights."""
    found = []
    for _ in range(SAMPLES):
        task.model.zero_grad()
        task.loss(task.model, next(batches)).backward()  # type: ignore[no-untyped-call]
        found.append(flat(each.grad for each in task.model.parameters() if each.grad is not None))
    return torch.cat(found)


def ring_ratio(plan: Plan, gradients: Sequence[torch.Tensor]) -> float:
    """Return a ring's compression ratio: hops of its first half add a gradient, later hops carry the sum."""
    world, total, nbytes = len(gradients), gradients[0].clone(), 0
    for terms in range(1, world + 1):
        if terms > 1:
            total += gradients[terms - 1]
        hops = world - 1 if terms == world else 1
        nbytes += hops * _carried_nbytes(plan, total)
    return 2 * (world - 1) * total.nbytes / nbytes


def _carried_nbytes(plan: Plan, values: torch.Tensor) -> int:
    """Return the encoded bytes of values, encoded segment by segment on the host or in NICs."""
    count, nbytes = SEGMENT_NBYTES // FLOAT_NBYTES, 0
    for start in range(0, values.numel(), count):
        segment = values[start : start + count]
        payload = plan.encoding.encode(segment)
        if plan.offload is not None:
            floats = payload[-segment.nbytes :].clone().view(values.dtype)
            payload = parse(str(plan.offload)).encode(floats)
        nbytes += payload.numel()
    return nbytes


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a row per cell, and the number of good predictions."""
    libraries = {(row["rate"], row["mtu"]): row["measured_s"] for row in select(rows, way=LIBRARY)}
    found = [{**row, "library_s": libraries[row["rate"], row["mtu"]]} for row in rows]
    good = sum(abs(error_of(row)) <= GOOD for row in rows)
    scaled = "" if rows[0]["scale"] is None else ", scaled"
    title = f"steps of an MLP on {rows[0]['hosts']} hosts with {rows[0]['codec']}{scaled}"
    verdict = f"{good} of {len(rows)} predictions are within {100 * GOOD:.0f} % of the measured time."
    return [title, "", table_of(COLUMNS, found), "", NOTE, "", verdict]


EXPERIMENT = Experiment(
    name="software-nic",
    question="how long do steps over software NICs take, as predicted?",
    answer=Answer("speed-up", ("codec in", "rate", "MTU")),
    options=SoftwareNicOptions,
    cells=cells,
    run=measured_by(__name__, _given),
    table=table,
)
