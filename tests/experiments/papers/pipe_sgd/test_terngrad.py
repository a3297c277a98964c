from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.pipe_sgd.terngrad import EXHIBIT, Options


def verdicts(terngrad: float, light: float) -> list[Verdict]:
    times = {"identity": 1.0, "truncate:16": light, "quantize:8": 1.0, "terngrad": terngrad}
    return [
        claim.verdict
        for claim in EXHIBIT.claims([{"codec": codec, "seconds": [each]} for codec, each in times.items()])
    ]


def test_verdicts_follow_from_the_times() -> None:
    assert verdicts(2.0, 0.07) == [Verdict.REPRODUCED, Verdict.REPRODUCED]
    assert verdicts(0.5, 0.5) == [Verdict.EXPLAINED, Verdict.EXPLAINED]
    assert verdicts(5.0, 0.1) == [Verdict.NOT_REPRODUCED, Verdict.NOT_REPRODUCED]


def test_each_codec_is_exchanged() -> None:
    found = perform(EXHIBIT.experiment, Options(400_000, 1), quiet=True)
    assert [row["codec"] for row in found] == ["identity", "truncate:16", "quantize:8", "terngrad"]
    assert all(len(row["seconds"]) == 1 and row["seconds"][0] > 0 for row in found)
