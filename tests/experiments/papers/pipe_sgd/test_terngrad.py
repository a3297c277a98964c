from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.pipe_sgd.terngrad import EXHIBIT, SMALLER, Options


def verdicts(terngrad: float, light: float = 0.55, compressed: float = 0.0625) -> list[Verdict]:
    times = {
        ("terngrad", 1600): terngrad,
        ("truncate:16", 1600): light,
        ("quantize:8", 1600): light,
        ("identity", 1600): 1.0,
        ("identity", 100): compressed,
        ("identity", 800): 0.5,
        ("identity", 400): 0.3,
    }
    rows = [{"codec": codec, "nbytes": nbytes, "seconds": [each]} for (codec, nbytes), each in times.items()]
    return [claim.verdict for claim in EXHIBIT.claims(rows)]


def test_verdicts_follow_from_the_times_on_both_sides() -> None:
    kept, failed = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED
    assert verdicts(2.0) == [kept] * 4
    assert verdicts(0.5) == [failed, failed, kept, kept], "a faster codec is another one"
    assert verdicts(5.0) == [failed, failed, kept, kept]
    assert verdicts(2.0, compressed=0.2) == [kept, failed, kept, kept]
    assert verdicts(2.0, light=0.7) == [kept, kept, kept, failed], "no longer masked"


def test_what_a_codec_sends_is_exchanged_without_it_too() -> None:
    found = perform(EXHIBIT.experiment, Options(400_000, 1), quiet=True)
    exact = [400_000, 25_000, 200_000, 100_000]
    assert [(row["codec"], row["nbytes"]) for row in found] == [
        *((codec, 400_000) for codec in SMALLER),
        *(("identity", nbytes) for nbytes in exact),
    ]
    assert all(len(row["seconds"]) == 1 and row["seconds"][0] > 0 for row in found)
