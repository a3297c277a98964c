from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.experiments.smart_nic.options import PAPER, Options, cells
from gradwire.experiments.smart_nic.published import published
from gradwire.experiments.smart_nic.report import table
from gradwire.tables import WIDTH, lines

RING = {"part": "ring", "codec": "identity", "nodes": 2, "rounds": 1, "chunk_words": 320} | {
    f"{name}cycles": value
    for name, value in (
        ("ring_", 640.0),
        ("add_", 640.0),
        ("memory_", 640.0),
        ("latency_", 8),
        ("model_", 960.0),
        ("", 968),
    )
}
NETWORK = {"hosts": 4, "rate": "200mbit", "layers": 20, "width": 512, "batch": 448, "flops_per_s": 1.04e10}


def step(method: str, codec: str, measured_s: float) -> dict[str, Any]:
    times = {"measured_s": measured_s, "fastest_s": measured_s, "slowest_s": 2.0, "predicted_s": 1.0}
    return {"part": "step", **NETWORK, "method": method, "codec": codec, **times}


STEPS = [
    step("blocking", "identity", 2.0),
    step("overlapped", "identity", 1.0),
    step("layer-wise", "bfp:7x16", 0.5),
]


def test_each_part_has_its_table_and_all_keep_the_width() -> None:
    rows: list[Mapping[str, Any]] = []
    published(cells(Options(parts=(PAPER,))), rows.append)
    printed = lines(*table([*rows, RING, *STEPS]))
    assert max(map(len, printed)) <= WIDTH
    split = [line.split() for line in printed]
    assert ["identity", "2", "1", "640", "640", "640", "8", "960", "968", "-0.83"] in split
    assert ["layer-wise", "bfp:7x16", "500", "500", "2000", "1000", "+100.0", "2.00x"] in split
    assert "steps of 20 layers of 512 x 512 weights, batch 448, 4 hosts at 200mbit," in " ".join(printed)
    assert any(line.startswith("PCIe, both directions") and "omitted" in line for line in printed)
    assert any(line.startswith("measured steps: median error") and line.endswith("no") for line in printed)


def test_a_part_alone_has_only_its_table() -> None:
    printed = lines(*table([RING]))
    assert printed[0].startswith("cycles of the gateware's ring")
    assert not any("figure of the paper" in line for line in printed)
