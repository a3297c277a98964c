"""The tables: each policy's way to the error, a batch's profile, and the claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gradwire.experiments.a2dtwp.options import AWP, BF16, DELTAS, FP32, SYSTEMS
from gradwire.experiments.a2dtwp.verdict import (
    claims,
    curve_of,
    figure_of,
    gain,
    last_error,
    oracle_of,
    target_of,
)
from gradwire.experiments.claims_table import claims_parts
from gradwire.experiments.experiment import Row
from gradwire.job.equal_loss import reach
from gradwire.tables import Column, Table, figure

RUNS = (
    Column.of_text("policy"),
    Column("bits"),
    Column("transfer", "ms"),
    Column("batch", "ms"),
    Column("error", "%"),
    Column("batches", "to error"),
    Column("time", "s"),
    Column("saved", "%"),
)
PROFILE = (
    ("transfer to the device", "transfer_s"),
    ("transfer to the host", "to_host_s"),
    ("forward and backward", "compute_s"),
    ("update", "update_s"),
    ("norms, and packing meanwhile", "norm_s"),
    ("packing", "pack_s"),
    ("CPU of norms and packing", "packing_cpu_s"),
    ("decoding", "decode_s"),
    ("unpacking", "unpack_s"),
    ("waiting for weights", "exposed_s"),
    ("waiting for gradients", "gradient_wait_s"),
    ("batch", "batch_s"),
)
"""The kernels of tables II and III, what isn't hidden behind others, and the whole."""
PROFILED = (FP32, BF16, AWP, *DELTAS)
SHOWN = "vgg"
"""The model of tables II and III."""
NOTE = (
    "Bits: sent for each weight and batch. Batches and time: to the error of fp32 at its end, and one point; "
    "'-' where a policy doesn't reach it. Saved: of fp32's time. The oracle is the static format that is "
    "there first. Norms, packing, and decoding run beside the other work, on threads of their own. In "
    "claims, the error to reach is that of the second policy at its end, and one point; of delta and a "
    "policy that cuts weights off, the larger one of both."
)

Rows = Mapping[str, Mapping[str, Row]]
"""By model and policy."""


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return the tables of all models and systems."""
    by_model: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_model.setdefault(row["model"], {})[row["policy"]] = row
    systems = [name for name in SYSTEMS if name in rows[0]["cycles"]]
    parts: list[str | Table] = []
    for system in systems:
        for model, own in by_model.items():
            parts += [_title(model, system, own), "", Table(RUNS, [*_runs(own, system)]), ""]
        shown = SHOWN if SHOWN in by_model else next(iter(by_model))
        parts += [
            f"a batch of {shown} on the link of {system}, in ms",
            "",
            _profile(by_model[shown], system),
            "",
        ]
    return [*parts, *claims_parts(claims(by_model, systems), [*by_model]), NOTE]


def _title(model: str, system: str, rows: Mapping[str, Row]) -> str:
    row = next(iter(rows.values()))
    error = f"; the error to reach is {100 * target_of(rows[FP32]):.1f} %" if FP32 in rows else ""
    return f"{model}, {row['parameters'] / 1e6:.2f} M weights, on the link of {system}{error}"


def _runs(rows: Mapping[str, Row], system: str) -> Iterator[tuple[str, ...]]:
    target = target_of(rows[FP32]) if FP32 in rows else None
    best = None if target is None else oracle_of(rows, system, target)
    for name, row in rows.items():
        found = None if target is None else reach(curve_of(row, system), target)
        saved = None if target is None else gain(row, rows[FP32], system, target)
        yield (
            f"{name} (oracle)" if row is best else name,
            figure(8 * figure_of(row, system, "sent_nbytes") / row["parameters"]),
            figure(1e3 * figure_of(row, system, "transfer_s")),
            figure(1e3 * figure_of(row, system, "batch_s")),
            f"{100 * last_error(row):.1f}",
            "-" if found is None else f"{found[0]:.0f}",
            "-" if found is None else figure(found[1]),
            "-" if saved is None else f"{100 * saved:.1f}",
        )


def _profile(rows: Mapping[str, Row], system: str) -> Table:
    names = [name for name in PROFILED if name in rows]
    found = [
        (text, *(figure(1e3 * figure_of(rows[name], system, each)) for name in names))
        for text, each in PROFILE
    ]
    return Table([Column.of_text(""), *map(Column, names)], found)
