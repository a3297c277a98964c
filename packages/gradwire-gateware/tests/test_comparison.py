from typing import Any

from gradwire.tables import Table, lines
from gradwire_gateware.synthesis import tables


def row(block: str, target: str, resources: dict[str, float], **more: object) -> dict[str, Any]:
    return {
        "block": block,
        "codec": "bfp:7x16",
        "width": 256,
        "target": target,
        "resources": resources,
        **more,
    }


INTEL: dict[str, float] = {"ALUT": 1000, "FF": 5, "M10K": 2, "DSP": 0}


def test_every_target_has_its_table_and_its_own_resources() -> None:
    rows = [
        row("bfp-compressor", "xilinx7", {"LUT": 10, "FF": 4, "BRAM36": 1.5, "DSP": 0}),
        row("bfp-compressor", "ecp5", {"LUT4": 9, "FF": 4, "BRAM18": 0, "DSP": 0}, clock_mhz=100.0),
    ]
    text = lines(*tables(rows))
    assert max(map(len, text)) <= 80
    assert "Xilinx 7 series, words of 256 bits" in text
    assert ["bfp-compressor", "bfp:7x16", "10", "4", "1.5", "0"] in [line.split() for line in text]
    assert ["bfp-compressor", "bfp:7x16", "9", "4", "0", "0", "100.0", "25.6"] in [
        line.split() for line in text
    ]


def test_the_published_figures_stand_beside_what_does_the_same() -> None:
    rows = [row(block, "intel", INTEL) for block in ("bfp-compressor", "bfp-decompressor")]
    text = "\n".join(lines(*tables(rows)))
    assert "published BFP, Arria 10" in text
    assert "2857 ALM" in text
    assert "2000 ALUT" in text
    assert "all-reduce" not in text, "its block was not measured"
    assert "published" not in "\n".join(lines(*tables(rows[:1])))


def test_the_published_all_reduce_has_no_codec() -> None:
    ring = row("ring-engine", "intel", INTEL)
    assert "published" not in "\n".join(lines(*tables([ring])))
    assert "2233 ALM" in "\n".join(lines(*tables([{**ring, "codec": "identity"}])))


def test_only_blocks_with_words_have_a_rate() -> None:
    adder = next(
        each
        for each in tables([row("float-adder", "ecp5", {"LUT4": 9}, clock_mhz=100.0)])
        if isinstance(each, Table)
    )
    assert adder.rows[0][-2:] == ("100.0", "")
    parts = tables([row("bfp-compressor", "ecp5", {"LUT4": 9}, clock_mhz=123.46)])
    table = next(part for part in parts if isinstance(part, Table))
    assert table.rows[0][-2:] == ("123.5", "31.6")
