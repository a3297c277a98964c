from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.tables import WIDTH, lines
from gradwire_lab.experiments.smart_nic import table
from gradwire_lab.experiments.smart_nic.options import PAPER, SmartNicOptions, cells, published

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
PLACE = {"rate": "80mbit", "layers": 2, "width": 100, "batch": 50, "data": "digits"}
CALIBRATION = {"part": "calibration", "hosts": 2, **PLACE} | {
    "compute_core_s": 2e-3,
    "update_core_s": 4e-4,
    "exchange_core_s": 1e-3,
    "exchange_s": 5e-3,
}


def step(method: str, codec: str) -> dict[str, Any]:
    seconds = {f"{name}_s": [0.1] for name in ("step", "exposed", "backward")}
    made = {"method": method, "codec": codec, "slowest_s": 2.0, "accuracies": [0.95]}
    return {"part": "step", "hosts": 3, **PLACE, **made, **seconds}


def test_each_part_has_its_table_and_all_keep_the_width() -> None:
    rows: list[Mapping[str, Any]] = []
    published(cells(SmartNicOptions(parts=(PAPER,))), rows.append)
    steps = [step("naive", "identity"), step("overlapped", "identity"), step("layer-wise", "bfp:7x16")]
    printed = lines(*table([*rows, RING, CALIBRATION, *steps]))
    assert max(map(len, printed)) <= WIDTH
    split = [line.split() for line in printed]
    assert ["identity", "2", "1", "640", "640", "640", "8", "960", "968", "-0.83"] in split
    assert any(words[:5] == ["3", "80mbit", "100", "50", "naive"] and words[-1] == "0.950" for words in split)
    assert "steps of 2 layers on digits, predicted from 2 hosts at 80mbit" in " ".join(printed)
    assert any(line.startswith("PCIe, both directions") and "omitted" in line for line in printed)
    assert any("arithmetic" in line for line in printed)


def test_trainings_that_did_not_learn_are_named() -> None:
    dead = [{**step("layer-wise", codec), "accuracies": [0.1]} for codec in ("identity", "bfp:7x16")]
    text = " ".join(lines(*table([CALIBRATION, *dead])))
    assert "did not learn" in text
    assert "ends at 0.100 (one seed), below" in " ".join(text.split())


def test_a_part_alone_has_only_its_table() -> None:
    printed = lines(*table([RING]))
    assert printed[0].startswith("cycles of the gateware's ring")
    assert not any("figure of the paper" in line for line in printed)
