from __future__ import annotations

import pytest

from gradwire_gateware import synthesis as report
from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.ai_smart_nic.table_1 import CODECS, EXHIBIT, TABLE, SmartNicTable1Options


def rows(**blocks: tuple[float, float, float]) -> list[dict[str, object]]:
    usual = {
        "ring_engine": (2000 + 8 * 400, 40, 0),
        "bfp_compressor": (1000, 0, 0),
        "bfp_decompressor": (1500, 0, 0),
        "float_adder": (400, 0, 0),
    } | blocks
    parts = [
        {"block": name.replace("_", "-"), **dict(zip(("ALM", "M20K", "DSP"), each, strict=True))}
        for name, each in usual.items()
    ]
    table = {
        "ALM": 69570,
        "M20K": 534,
        "DSP": 8,
        "ALM share": 0.012,
        "M20K share": 0.061,
        "DSP share": 0.005,
        "ratio": 3.76,
    }
    return [*parts, {"block": TABLE, **table}]


def verdicts(found: list[dict[str, object]]) -> list[Verdict]:
    return [claim.verdict for claim in EXHIBIT.claims(found)]


def test_verdicts_follow_from_the_resources() -> None:
    modelled, explained, failed = Verdict.MODELLED, Verdict.EXPLAINED, Verdict.NOT_REPRODUCED
    arithmetic = Verdict.ARITHMETIC
    assert verdicts(rows()) == [
        explained,
        modelled,
        explained,
        modelled,
        explained,
        modelled,
        *[arithmetic] * 7,
    ]
    assert verdicts(rows(ring_engine=(2000, 60, 8)))[:3] == [modelled, failed, modelled]
    assert verdicts(rows(ring_engine=(2300 + 8 * 400, 20, 9)))[:3] == [failed, explained, failed]
    assert verdicts(rows(bfp_compressor=(2400, 160, 1)))[3:6] == [failed, failed, failed]
    assert verdicts(rows(bfp_compressor=(100, 0, 0)))[3] == failed, "far less is no reproduction either"
    altered = [each | {"ALM": 1.0, "DSP share": 0.05, "ratio": 4.0} for each in rows()]
    assert verdicts(altered)[6:] == [failed, *[arithmetic] * 4, failed, failed]


def test_the_published_table_adds_up_and_what_is_kept_counts_as_half() -> None:
    found = {row["block"]: row for row in perform(EXHIBIT.experiment, EXHIBIT.quick, quiet=True)}
    assert set(found) == {TABLE, *CODECS}
    assert found[TABLE]["ratio"] == 512 / 136
    assert (found[TABLE]["ALM"], found[TABLE]["M20K"], found[TABLE]["DSP"]) == (69570, 534, 8)
    for block in CODECS:
        assert found[block]["ALM"] == found[block]["resources"]["ALUT"] / 2
    # 40 Gbit/s want all lanes: what is kept is not that of a fraction of the ring.
    assert found["ring-engine"]["ALM"] > 8 * found["float-adder"]["ALM"]


def test_with_full_the_blocks_are_synthesised(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[report.Cell] = []

    def measure(wanted: list[report.Cell]) -> list[report.Row]:
        asked.extend(wanted)
        return [{"resources": {"ALUT": 10, "FF": 1, "M10K": 4, "DSP": 2}}]

    monkeypatch.setattr(report, "measure", measure)
    found = perform(EXHIBIT.experiment, SmartNicTable1Options(synthesises=True), quiet=True)
    assert [(row["ALM"], row["M20K"], row["DSP"]) for row in found[1:]] == [(5, 2, 2)] * 4
    assert [(each.block, each.codec, each.target) for each in asked] == [
        (block, codec, "intel") for block, codec in CODECS.items()
    ]
