from __future__ import annotations

import pytest

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.inceptionn.figure_7 import CODECS, EXHIBIT, Options, times_longer


def row(codec: str, seconds: float, ratio: float) -> dict[str, object]:
    sizes = {"nbytes": 233_000_000, "payload_nbytes": 233e6 / ratio}
    return {"codec": codec, **sizes, "encode_s": [seconds], "decode_s": [seconds / 4]}


def rows(**seconds: float) -> list[dict[str, object]]:
    ratios = dict(zip(CODECS, (1.3, 1.3, 2.0, 10.0), strict=True))
    return [row(codec, seconds.get(codec.split(":")[0], 0.01), ratio) for codec, ratio in ratios.items()]


def test_a_step_is_longer_by_its_codec_and_shorter_by_its_bytes() -> None:
    # 100 steps of 0.5 s to encode and as much to decode; half of two thirds of 148.71 s less to send.
    assert times_longer(row("truncate:16", 0.5, 2.0)) == pytest.approx((196.35 - 148.71 / 3 + 100) / 196.35)


def test_verdicts_follow_from_the_times() -> None:
    good, explained, failed = Verdict.REPRODUCED, Verdict.EXPLAINED, Verdict.NOT_REPRODUCED
    assert [claim.verdict for claim in EXHIBIT.claims(rows(zlib=4.0))] == [good, good, good, explained]
    assert [claim.verdict for claim in EXHIBIT.claims(rows(zlib=0.1, truncate=1.0))] == [
        failed,
        good,
        failed,
        explained,
    ]
    assert [claim.verdict for claim in EXHIBIT.claims(rows(zlib=4.0, inceptionn=0.8))][3] is failed
    incompressible = [each | {"payload_nbytes": 1e8} for each in rows(zlib=4.0)]
    assert EXHIBIT.claims(incompressible)[1].verdict is failed


def test_codecs_are_timed_on_a_gradient() -> None:
    found = perform(EXHIBIT.experiment, Options(("zlib:1", "truncate:16"), 1), quiet=True)
    assert found[1]["nbytes"] == 2 * found[1]["payload_nbytes"]
    assert all(len(each["encode_s"]) == len(each["decode_s"]) == 1 for each in found)
    assert found[0]["nbytes"] > found[0]["payload_nbytes"]
