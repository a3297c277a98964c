from __future__ import annotations

import json
from typing import Any

from gradwire.records import make_record, to_json
from gradwire_lab.benchmark.codec_page import SCHEMA, in_words, page_of
from support.pages import Page


def result(name: str, target: str, ratio: float, share: float, *, adds: bool = True) -> dict[str, Any]:
    speed = {"gbps": 10 * share, "memcpy_gbps": 10.0}
    return {
        "name": name,
        "target": target,
        "ratio": ratio,
        "max_error": 0.25,
        "encode": speed,
        "decode": speed,
        "decode_add": speed if adds else None,
    }


RESULTS = [
    result("identity", "avx2", 1.0, 2.0),
    result("fp<8>", "scalar", 3.98, 0.25),
    result("fp<8>", "avx2", 3.98, 0.5),
    result("zstd", "peer", 1.05, 0.01, adds=False),
]


def record_of(results: list[dict[str, Any]]) -> Any:
    options = {"elements": 1024, "data": "laplace", "threads": 1}
    return json.loads(to_json(make_record(SCHEMA, {"options": options, "results": results})))


def test_every_codec_and_target_is_there_as_a_ratio_to_memcpy() -> None:
    html = page_of(record_of(RESULTS))
    page = Page(html)
    said = "fp<8> encodes fastest, at 0.50x the speed of memcpy; zstd slowest, at 0.01x."
    assert said in page.text
    assert page.rows[1:5] == [
        ["identity", "avx2", "1.00", "2.50e-01", *["2.00"] * 3, *["20"] * 3, "10"],
        ["fp<8>", "scalar", "3.98", "2.50e-01", *["0.25"] * 3, *["2.5"] * 3, "10"],
        ["fp<8>", "avx2", "3.98", "2.50e-01", *["0.50"] * 3, *["5"] * 3, "10"],
        ["zstd", "peer", "1.05", "2.50e-01", "0.01", "0.01", "-", "0.1", "0.1", "-", "10"],
    ]
    assert html.count("<figure>") == 1
    assert page_of(record_of(RESULTS)) == html


def test_one_codec_alone_is_neither_compared_nor_called_slow() -> None:
    assert in_words(RESULTS[1:2]) == "fp<8> encodes fastest, at 0.25x the speed of memcpy."
    assert in_words(RESULTS[:1]) == "No compressing codec was measured."
