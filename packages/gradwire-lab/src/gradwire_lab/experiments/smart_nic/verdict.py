"""The smart NIC's model: its step time on a testbed (section IV.C), its errors, and the claims about them.

``T_AR = max(T_ring, T_add, T_mem)``. Hosts share a core for computing and a core for the ring. The parameters
are from one configuration alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gradwire.units import parse_rate
from gradwire_lab.closed_forms.smart_nic import (
    Mlp,
    Node,
    SmartNic,
    Trace,
    blocking_step,
    overlapped_step,
    padded_nbytes,
    smart_step,
)
from gradwire_lab.closed_forms.smart_nic_figures import How
from gradwire_lab.experiments.claim import RATIO, SHARE, Basis, Claim, Published, at_most, near, only
from gradwire_lab.experiments.experiment import Row, grouped, select
from gradwire_lab.experiments.learning import GOALS, Trainings, exact_trainings
from gradwire_lab.experiments.smart_nic.options import (
    CALIBRATION,
    FIGURE,
    IDENTITY,
    LAYERWISE,
    NAIVE,
    NICS,
    OVERLAPPED,
    RING,
    STEP,
)

CONFIGURATION = ("hosts", "rate", "layers", "width", "batch")
"""The fields of a configuration; a prediction must differ from its calibration in one of them."""


@dataclass(frozen=True)
class Parameters:
    """The model's P_Worker and T_U with a whole core, alpha, and P_FPGA with a whole core, as calibrated."""

    flops_per_s: float
    update_s_per_parameter: float
    usable_share: float
    adds_per_s: float


def parameters(row: Row) -> Parameters:
    """Return the model's parameters from the row of a calibration."""
    hosts, width, layers = row["hosts"], row["width"], row["layers"]
    flops = layers * 6 * width**2 * row["batch"]
    on_line_nbytes = padded_nbytes(width, hosts) * 2 * (hosts - 1) / hosts
    rate = _line(row) * row["exchange_s"]
    return Parameters(
        flops / row["compute_core_s"],
        row["update_core_s"] / (layers * width**2),
        min(1.0, on_line_nbytes / rate),
        on_line_nbytes / 4 / row["exchange_core_s"],
    )


def predicted(known: Parameters, row: Row) -> Trace:
    """Return the model's step for the configuration, the schedule, and the codec of a row."""
    hosts, width = row["hosts"], row["width"]
    mlp = Mlp((width,) * row["layers"], row["batch"])
    node = Node(known.flops_per_s / hosts, known.update_s_per_parameter * hosts)
    nic = SmartNic(
        _line(row), known.usable_share, compression(row["codec"]), known.adds_per_s / hosts, math.inf
    )
    if row["method"] == NAIVE:
        return blocking_step(mlp, node, nic, hosts)
    if row["method"] == LAYERWISE:
        return smart_step(mlp, node, nic, hosts)
    taken_s = nic.add_s(padded_nbytes(width, hosts), hosts)
    return overlapped_step(mlp, node, nic, hosts, slowdown=1 + taken_s / node.backward_s(width, mlp.batch))


def is_calibrated_on(calibration: Row, row: Row) -> bool:
    """Return whether a row has the configuration of the calibration."""
    return all(calibration[name] == row[name] for name in CONFIGURATION)


def compression(spec: str) -> float:
    """Return the compression ratio of a codec whose payloads have a fixed size."""
    from gradwire.codecs import Bfp, parse

    codec = parse(spec)
    block = codec.block if isinstance(codec, Bfp) else 1
    return 4 * block / codec.max_nbytes(block)


def _line(row: Row) -> float:
    return parse_rate(row["rate"]) or math.inf


# The errors of the model, and the claims.

OF_STEPS = 0.03
"""The largest error of the published model relative to the published prototype, on 3 to 6 nodes."""
ERROR = Published("section V.B", OF_STEPS, is_limit=True)
OF_CYCLES = 0.01
"""The allowed error in cycles. Cycles are counted, so the model's error has no variance."""
WITHIN = 0.10
"""The allowed difference as a share of a published figure. Published figures have two digits."""
BASES = {
    How.PREDICTED: Basis.MODELLED,
    How.CALIBRATED: Basis.CALIBRATED,
    How.ARITHMETIC: Basis.ARITHMETIC,
}
CONVENTIONAL = ((NAIVE, IDENTITY), (OVERLAPPED, IDENTITY))


def error(row: Row, calibration: Row | None = None) -> float:
    """Return the model's figure divided by the published, simulated, or measured figure, minus 1."""
    if row["part"] == RING:
        return float(row["model_cycles"] / row["cycles"] - 1)
    if calibration is not None:
        return predicted(parameters(calibration), row).total_s / fmean(row["step_s"]) - 1
    return float(row["model"] / row["published"] - 1)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about the parts that were performed."""
    return [*figure_claims(rows), *ring_claims(rows), *step_claims(rows)]


def figure_claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare each published figure with the model's. Figures that hold by construction are marked."""
    return [
        Claim(
            row["what"],
            only(row["model"]),
            near(row["published"], WITHIN),
            unit=SHARE if row["published"] <= 1 else RATIO,
            published=Published(str(row["source"]).rpartition(", ")[2], row["published"], _erratum(row)),
            basis=BASES[How(row["how"])],
        )
        for row in select(rows, part=FIGURE)
    ]


def _erratum(row: Row) -> str:
    if row["reason"]:
        return f"By construction: {row['reason']}."
    if "NIC" in row["what"] and row["what"].endswith("speedup"):
        return "the speed-ups compare a NIC of 40 Gbit/s with a baseline of 100 Gbit/s."
    return ""


def ring_claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the model's T_AR, in cycles, with simulated engines. No chip is measured."""
    errors = [abs(error(row)) for row in select(rows, part=RING)]
    if not errors:
        return []
    text = "cycles of a simulated ring: largest error of T_AR"
    return [Claim(text, only(max(errors)), at_most(OF_CYCLES), published=ERROR, basis=Basis.MODELLED)]


def step_claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare measured steps with the model's predictions, and schedules with each other."""
    steps, (calibration, *_) = select(rows, part=STEP), [*select(rows, part=CALIBRATION), None]
    if not steps or calibration is None:
        return []
    most = max(row["hosts"] for row in steps)
    by_batch = grouped(select(steps, hosts=most), "batch")
    found = _errors(steps, calibration)
    for batch, compared in zip(sorted(by_batch), (_bars, _profile), strict=False):
        found += compared(MeasuredSteps(by_batch[batch]), f"batch {batch}, {most} hosts")
    return found


def _errors(steps: Sequence[Row], calibration: Row) -> list[Claim]:
    """Return the claims about the predictions' errors, calibrated if one is for the calibration."""
    found = []
    for name, pairs, published in (
        *((f"NIC, {codec}", [(method, codec)], ERROR) for method, codec in NICS),
        ("conventional NICs", CONVENTIONAL, None),
    ):
        own = [row for row in steps if (row["method"], row["codec"]) in pairs]
        fitted = any(is_calibrated_on(calibration, row) for row in own)
        found.append(
            Claim(
                f"{name}: error of predicted steps",
                {_where(row): abs(error(row, calibration)) for row in own},
                at_most(OF_STEPS),
                of_each=True,
                published=published,
                basis=Basis.CALIBRATED if fitted else Basis.MEASURED,
                rests_on=[each for row in own for each in trainings(steps, row)],
            )
        )
    return found


@dataclass(frozen=True)
class MeasuredSteps:
    """The measured steps of one configuration, with all methods and codecs."""

    rows: Sequence[Row]

    def s(self, method: str, codec: str, activity: str = "step") -> float | None:
        """Return the mean seconds of a step or of an activity in the step, or None if not measured."""
        row = self._row(method, codec)
        return None if row is None else fmean(row[f"{activity}_s"])

    def claim(
        self,
        text: str,
        where: str,
        figure: float | None,
        published: float,
        place: str,
        of: Sequence[tuple[str, str]],
        unit: str = SHARE,
    ) -> Claim:
        """Return the claim about the counterpart of a published figure."""
        rows = [row for row in (self._row(*each) for each in of) if row is not None]
        return Claim(
            text,
            only(figure),
            near(published, WITHIN),
            system=where,
            unit=unit,
            published=Published(place, published),
            rests_on=[each for row in rows for each in trainings(self.rows, row)],
        )

    def _row(self, method: str, codec: str) -> Row | None:
        return next((row for row in self.rows if (row["method"], row["codec"]) == (method, codec)), None)


def _bars(steps: MeasuredSteps, where: str) -> list[Claim]:
    """Return claims that compare measured steps with figure 4a, and the speed-up with figure 4b."""
    before, found = CONVENTIONAL[1], []
    activities = {"step": "part of the step", "exposed": "exposed time", "backward": "backward"}
    for name, own, shares in (
        ("NIC", NICS[0], {"step": 0.18, "exposed": 0.37, "backward": 0.10}),
        ("NIC + BFP", NICS[1], {"step": 0.40, "exposed": 0.95}),
    ):
        for activity, published in shares.items():
            text = f"{name}: {activities[activity]} saved"
            saved = _saved(steps.s(*own, activity), steps.s(*before, activity))
            found.append(steps.claim(text, where, saved, published, "figure 4a", (own, before)))
    return [*found, _speedup(steps, where, 1.6)]


def _speedup(steps: MeasuredSteps, where: str, published: float) -> Claim:
    bfp, before = NICS[1], CONVENTIONAL[1]
    speedup = _over(steps.s(*before), steps.s(*bfp))
    return steps.claim("NIC + BFP: speed-up", where, speedup, published, "figure 4b", (bfp, before), RATIO)


def _profile(steps: MeasuredSteps, where: str) -> list[Claim]:
    """Return the counterparts of figure 2a, and of the speed-up with the large batch."""
    naive, before = CONVENTIONAL
    slower = _saved(steps.s(*before, "backward"), steps.s(*naive, "backward"))
    naive_s, naive_exposed_s = steps.s(*naive), steps.s(*naive, "exposed")
    overlapped_exposed_s = steps.s(*before, "exposed")
    added = None if slower is None else -slower
    found = [
        ("naive: exposed part of the step", _over(naive_exposed_s, naive_s), 0.51, SHARE, (naive,)),
        ("overlapped: speed-up over naive", _over(naive_s, steps.s(*before)), 1.85, RATIO, CONVENTIONAL),
        (
            "overlapped: exposed time, naive over it",
            _over(naive_exposed_s, overlapped_exposed_s),
            50,
            RATIO,
            CONVENTIONAL,
        ),
        ("overlapped: time added to backward", added, 0.11, SHARE, CONVENTIONAL),
    ]
    claims = [
        steps.claim(text, where, figure, published, "figure 2a", of, unit)
        for text, figure, published, unit, of in found
    ]
    return [*claims, _speedup(steps, where, 1.1)]


def _saved(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else 1 - after / before


def _over(before: float | None, after: float | None) -> float | None:
    return None if after is None or before is None else before / after


def trainings(rows: Sequence[Row], row: Row) -> list[Trainings]:
    """Return the training runs of a row, with exact training runs of the same configuration."""
    name, goal = f"{row['codec']}, {_where(row)}", GOALS[row["data"]]
    if row["codec"] == IDENTITY:
        return [exact_trainings(name, row["accuracies"], goal)]
    exact = [
        each["accuracies"]
        for each in rows
        if each["codec"] == IDENTITY
        and each["method"] == LAYERWISE
        and all(each[other] == row[other] for other in CONFIGURATION)
    ]
    return [Trainings(name, row["accuracies"], exact[0] if exact else (), goal)]


def _where(row: Row) -> str:
    place = f"{row['hosts']} hosts, {row['rate']}, width {row['width']}, batch {row['batch']}"
    return f"{row['method']}, {place}"
