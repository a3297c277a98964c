from __future__ import annotations

import pytest

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.hosts import exchanges
from gradwire_lab.experiments.papers.pipe_sgd.terngrad import EXHIBIT, SMALLER, TerngradOptions
from support.fake_hosts import fake_exchanges


def verdicts(
    terngrad: float, light: float = 0.55, compressed: float = 0.0625, line: float = 1.2e9
) -> list[Verdict]:
    times = {
        ("terngrad", 1600): terngrad,
        ("truncate:16", 1600): light,
        ("quantize:8", 1600): light,
        ("identity", 1600): 1.0,
        ("identity", 100): compressed,
        ("identity", 800): 0.5,
        ("identity", 400): 0.3,
    }
    rows = [
        {"codec": codec, "nbytes": nbytes, "seconds": [each], "line_nbytes_per_s": line}
        for (codec, nbytes), each in times.items()
    ]
    return [claim.verdict for claim in EXHIBIT.claims(rows)]


KEPT, FAILED = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED


def test_verdicts_follow_from_the_times_on_both_sides() -> None:
    assert verdicts(2.0) == [KEPT] * 5
    assert verdicts(0.5) == [KEPT, FAILED, FAILED, KEPT, KEPT], "a faster codec is another one"
    assert verdicts(5.0) == [KEPT, FAILED, FAILED, KEPT, KEPT]
    assert verdicts(2.0, compressed=0.2) == [KEPT, KEPT, FAILED, KEPT, KEPT]
    assert verdicts(2.0, light=0.7) == [KEPT, KEPT, KEPT, KEPT, FAILED], "no longer masked"


def test_a_codec_faster_than_its_bytes_alone_is_none() -> None:
    assert verdicts(2.0, light=0.4) == [KEPT, KEPT, KEPT, FAILED, KEPT]
    assert verdicts(2.0, light=0.1) == [KEPT, KEPT, KEPT, FAILED, FAILED]


def test_another_line_than_the_papers_fails() -> None:
    for line in (1e9, 1.5e9):
        assert verdicts(2.0, line=line) == [FAILED, KEPT, KEPT, KEPT, KEPT]


def test_what_a_codec_sends_is_exchanged_without_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_exchanges(monkeypatch, exchanges)
    found = perform(EXHIBIT.experiment, TerngradOptions(400_000, 1), quiet=True)
    exact = [400_000, 25_000, 200_000, 100_000]
    assert [(row["codec"], row["nbytes"]) for row in found] == [
        *((codec, 400_000) for codec in SMALLER),
        *(("identity", nbytes) for nbytes in exact),
    ]
    assert {(row["hosts"], row["rate"], row["algorithm"]) for row in found} == {(4, "10gbit", "ring")}
    assert asked == {"most": 1, "budget_s": 10.0, "line_nbytes": 1 << 20}


def test_a_chunk_is_one_segment_so_that_nothing_masks_a_codec() -> None:
    from gradwire.plan import Plan

    for options in (EXHIBIT.quick, EXHIBIT.full):
        assert options.nbytes // 4 <= Plan().segment_nbytes
