"""The tables: each policy's error and time, and the kernels of a full-size batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from gradwire.line_rate.page import new_figure, png_of
from gradwire.tables import Column, Table, figure
from gradwire_lab.experiments.a2dtwp.measured import MeasuredPolicies
from gradwire_lab.experiments.a2dtwp.options import (
    AWP,
    BF16,
    DELTAS,
    DIGITS,
    FP32,
    LINKS,
    POLICIES,
    TRAINS_AS,
)
from gradwire_lab.experiments.experiment import LOSSY, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
"""The kernels of tables II and III, the waits that don't overlap, and the whole batch."""
PROFILED = (FP32, BF16, AWP, *DELTAS)
SHOWN = "vgg"
"""The network of tables II and III."""
NOTE = (
    "Errors, batches, and bits are means over the seeds, for narrow networks. Milliseconds are for a batch "
    "of the full-size network on the system's link. The target error is fp32's final error plus one point; "
    "'-' means that a policy doesn't reach this error. Saved: the share of fp32's time to the target error "
    "(batches times milliseconds). delta trains exactly as bf16, and delta:fp32 exactly as fp32. The "
    "oracle is the static format that reaches the target first."
)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return the tables of all networks, the kernels of VGG's batches, and AWP's warnings."""
    found = MeasuredPolicies(rows)
    on = "scikit-learn's digits" if found.images == DIGITS else found.images
    parts: list[str | Table] = []
    for model in found.networks:
        has_target = bool(found.trainings(model, FP32))
        target = f"; the error to reach is {100 * found.target(model):.1f} %" if has_target else ""
        parts += [f"{model} on {on}{target}", "", Table(RUNS, [*_runs(model, found, has_target)]), ""]
    if all(found.row(SHOWN, policy) for policy in (FP32, BF16)):
        for system in LINKS:
            parts += [f"a batch of {SHOWN} in full size on the link of {system}, in ms", ""]
            parts += [_kernels(found, system), ""]
    return [*parts, *(f"{each}." for each in warned(found)), NOTE]


def warned(found: MeasuredPolicies) -> list[str]:
    """Return AWP's warnings, one per network."""
    return [
        f"{model}, seed {row['seed']}: {row[LOSSY][0].rstrip('.')}"
        for model in found.networks
        for row in found.trainings(model, AWP)[:1]
        if LOSSY in row
    ]


def _runs(model: str, found: MeasuredPolicies, has_target: bool) -> Iterator[tuple[str, ...]]:
    best = [found.oracle(model, system) for system in LINKS] if has_target else []
    for policy in POLICIES:
        trainings = found.trainings(model, policy)
        if not trainings:
            continue
        batches, times = found.batches_to(model, policy) if has_target else None, list[str]()
        for system in LINKS:
            each = found.figure(model, policy, system, "batch_s")
            saved = found.gain(model, policy, FP32, system) if has_target else None
            times.append("-" if each is None else figure(1e3 * each))
            times.append("-" if saved is None else f"{100 * saved:.1f}")
        yield (
            f"{policy} (oracle)" if policy in best else policy,
            figure(fmean(found.bits(model, row) for row in trainings)),
            f"{100 * found.last_error(model, policy):.1f}",
            "-" if batches is None else f"{batches:.0f}",
            *times,
        )


def _kernels(found: MeasuredPolicies, system: str) -> Table:
    def shown(policy: str, name: str) -> str:
        value = found.figure(SHOWN, policy, system, name)
        return "-" if value is None else figure(1e3 * value)

    lines = [(text, *(shown(policy, name) for policy in PROFILED)) for text, name in KERNELS]
    return Table([Column.of_text(""), *map(Column, PROFILED)], lines)


# The plot: error over batches, time to the error (figures 3 to 5), and each layer's bits over batches.


def plot(rows: Sequence[Row]) -> bytes:
    """Return a PNG with a row of panels per network."""
    found = MeasuredPolicies(rows)
    canvas = new_figure((16, 3.2 * len(found.networks)))
    every = canvas.subplots(len(found.networks), 3, squeeze=False)
    for (errors, times, bits), model in zip(every, found.networks, strict=True):
        _draw_errors(errors, found, model)
        _draw_times(times, found, model)
        _draw_bits(bits, found, model)
    return png_of(canvas)


def _draw_errors(axes: Axes, found: MeasuredPolicies, model: str) -> None:
    for policy in POLICIES:
        if policy not in TRAINS_AS and found.trainings(model, policy):
            points = found.curve(model, policy)
            axes.plot([batch for batch, _ in points], [100 * error for _, error in points], label=policy)
    axes.set_title(f"{model} on {found.images}")
    axes.set_xlabel("batches")
    axes.set_ylabel("validation error [%]")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize="x-small")


def _draw_times(axes: Axes, found: MeasuredPolicies, model: str) -> None:
    policies = [policy for policy in POLICIES if found.trainings(model, policy)]
    if FP32 not in policies:
        return
    for number, system in enumerate(LINKS):
        saved = [found.gain(model, policy, FP32, system) for policy in policies]
        places = [place + 0.4 * number for place in range(len(policies))]
        axes.bar(places, [0.0 if each is None else 1 - each for each in saved], width=0.38, label=system)
    axes.set_xticks(range(len(policies)), policies, rotation=30, ha="right", fontsize="x-small")
    axes.set_ylabel("time to the error, over fp32's")
    axes.legend(frameon=False, fontsize="x-small")


def _draw_bits(axes: Axes, found: MeasuredPolicies, model: str) -> None:
    for row in found.trainings(model, AWP)[:1]:
        last = row["errors"][-1][0]
        batches = [*(batch for batch, _ in row["bits"]), last]
        for layer, name in enumerate(row["layers"]):
            bits = [each[layer] for _, each in row["bits"]]
            axes.step(batches, [*bits, bits[-1]], where="post", label=name)
    axes.set_xlabel("batches")
    axes.set_ylabel("bits of each layer (awp)")
    axes.set_yticks([8, 16, 24, 32])
