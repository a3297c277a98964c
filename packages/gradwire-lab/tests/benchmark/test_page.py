from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from gradwire.records import make_record, to_json
from gradwire.timing.line import Line
from gradwire_lab.benchmark.allreduce import (
    SCHEMA,
    TORCH,
    Checked,
    Configuration,
    Result,
    Timing,
    torch_times,
)
from gradwire_lab.benchmark.page import PAGES, fastest
from support.pages import Page

LINE = Line(50e-6, 125e6, burst_nbytes=32_000)


def result(algorithm: str, p50_s: float, world: int = 2, nbytes: int = 1 << 20) -> Result:
    sent = (0,) * world if algorithm == TORCH else (400_000,) * world
    checked = Checked(sent, 2.5, 1e-4, math.inf, 0.03)
    return Result(
        Configuration(algorithm, "bf16", nbytes), world, Timing((p50_s, p50_s, 2 * p50_s)), checked, LINE
    )


def allreduce(results: list[Result], line: Line | None = LINE) -> Any:
    torchs = torch_times(results)
    rows = [each.describe(torchs.get((each.world, each.configuration.nbytes))) for each in results]
    fields = {
        "options": {"link": None, "data": "laplace:<0.001>"},
        "topology": None,
        "line": None if line is None else asdict(line),
        "results": rows,
    }
    return json.loads(to_json(make_record(SCHEMA, fields)))


def test_all_reduces_are_told_in_words_a_table_and_a_plot() -> None:
    results = [result(TORCH, 0.025), result("ring", 0.010), result("tree", 0.020)]
    html = PAGES[SCHEMA](allreduce(results))
    page = Page(html)
    said = "ring with bf16 is the fastest for 1MiB on 2 ranks: 10ms, 2.50x as fast as PyTorch's own."
    assert said in page.text
    assert page.headings[0] == (1, "All-reduce of laplace:<0.001>, not throttled")
    assert [row[0] for row in page.rows[1:4]] == [TORCH, "ring", "tree"]
    assert page.rows[2][-1] == "2.50x"
    assert html.count("<figure>") == 1
    assert PAGES[SCHEMA](allreduce(results, None)).count("<figure>") == 1


def test_the_largest_size_on_the_most_ranks_decides() -> None:
    small, large = result("ring", 0.001), result("tree", 0.5, nbytes=1 << 24)
    wide = [result("star", 0.3, 4), result("ring", 0.2, 4)]
    assert fastest([small, large]) == "tree with bf16 is the fastest for 16MiB on 2 ranks: 500ms"
    assert fastest([small, large, *wide]).startswith("ring with bf16 is the fastest for 1MiB on 4 ranks")
    assert fastest([result(TORCH, 0.1), result("ring", 0.2)]) == (
        "torch is the fastest for 1MiB on 2 ranks: 100ms"
    )
