"""The tables: each policy's way to the error, and the kernels of a batch in full size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from gradwire.experiments.a2dtwp.measured import Measured
from gradwire.experiments.a2dtwp.options import AWP, BF16, DELTAS, DIGITS, FP32, LINKS, POLICIES
from gradwire.experiments.experiment import Row
from gradwire.experiments.heard import LOSSY
from gradwire.tables import Column, Table, figure

RUNS = (
    Column.of_text("policy"),
    Column("bits"),
    Column("error", "%"),
    Column("batches", "to error"),
    *(column for system in LINKS for column in (Column(system, "ms"), Column("saved", "%"))),
)
KERNELS = (
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
"""The network of tables II and III."""
NOTE = (
    "Errors, batches, and bits: of narrow networks, the mean of the seeds, without a clock. Milliseconds: a "
    "batch of the network in full size on the link of a system. The error to reach is that of fp32 at its "
    "end, and one point; '-' where a policy doesn't reach it. Saved: of fp32's time to that error, which is "
    "composed of both measurements, batches times milliseconds. delta trains as bf16 and delta:fp32 as fp32, "
    "to the bit. The oracle is the static format that is there first on the link."
)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return the tables of all networks, the kernels of VGG's batches, and what AWP warned of."""
    found = Measured(rows)
    on = "scikit-learn's digits" if found.images == DIGITS else found.images
    parts: list[str | Table] = []
    for model in found.networks:
        parts += [_title(model, found, on), "", Table(RUNS, [*_runs(model, found)]), ""]
    if all(found.row(SHOWN, policy) for policy in (FP32, BF16)):
        for system in LINKS:
            parts += [f"a batch of {SHOWN} in full size on the link of {system}, in ms", ""]
            parts += [_kernels(found, system), ""]
    return [*parts, *(f"{each}." for each in warned(found)), NOTE]


def warned(found: Measured) -> list[str]:
    """Return AWP's warnings, once for each network."""
    return [
        f"{model}, seed {row['seed']}: {row[LOSSY][0].rstrip('.')}"
        for model in found.networks
        for row in found.trainings(model, AWP)[:1]
        if LOSSY in row
    ]


def _title(model: str, found: Measured, on: str) -> str:
    error = (
        f"; the error to reach is {100 * found.target(model):.1f} %" if found.trainings(model, FP32) else ""
    )
    return f"{model} on {on}{error}"


def _runs(model: str, found: Measured) -> Iterator[tuple[str, ...]]:
    has_target = bool(found.trainings(model, FP32))
    best = {system: found.oracle(model, system) if has_target else None for system in LINKS}
    for policy in POLICIES:
        trainings = found.trainings(model, policy)
        if not trainings:
            continue
        batches = found.batches_to(model, policy) if has_target else None
        names = [system for system in LINKS if best[system] == policy]
        yield (
            f"{policy} (oracle)" if names else policy,
            figure(fmean(found.bits(model, row) for row in trainings)),
            f"{100 * found.last_error(model, policy):.1f}",
            "-" if batches is None else f"{batches:.0f}",
            *(text for system in LINKS for text in _on(model, policy, system, found, has_target)),
        )


def _on(model: str, policy: str, system: str, found: Measured, has_target: bool) -> tuple[str, str]:
    each = found.figure(model, policy, system, "batch_s")
    saved = found.gain(model, policy, FP32, system) if has_target else None
    return (
        "-" if each is None else figure(1e3 * each),
        "-" if saved is None else f"{100 * saved:.1f}",
    )


def _kernels(found: Measured, system: str) -> Table:
    def shown(policy: str, name: str) -> str:
        value = found.figure(SHOWN, policy, system, name)
        return "-" if value is None else figure(1e3 * value)

    lines = [(text, *(shown(policy, name) for policy in PROFILED)) for text, name in KERNELS]
    return Table([Column.of_text(""), *map(Column, PROFILED)], lines)
