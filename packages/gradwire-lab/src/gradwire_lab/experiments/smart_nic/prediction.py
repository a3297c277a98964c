"""The model's step time on a testbed, with parameters from one configuration alone (section IV.C).

``T_AR = max(T_ring, T_add, T_mem)``. Hosts share a core for computing and a core for the ring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
from gradwire_lab.experiments.experiment import Row
from gradwire_lab.experiments.smart_nic.options import LAYERWISE, NAIVE

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
