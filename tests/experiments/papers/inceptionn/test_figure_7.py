from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.inceptionn import figure_7
from gradwire.experiments.papers.inceptionn.figure_7 import CODECS, EXHIBIT, SZ, Options, times_longer


def row(codec: str, seconds: float, ratio: float) -> dict[str, object]:
    sizes = {"nbytes": 233_000_000, "payload_nbytes": 233e6 / ratio}
    return {"codec": codec, **sizes, "encode_s": [seconds], "decode_s": [seconds / 4]}


def rows(**seconds: float) -> list[dict[str, object]]:
    ratios = dict(zip(CODECS, (1.3, 20.0, 1.3, 2.0, 10.0), strict=True))
    return [row(codec, seconds.get(codec.split(":")[0], 0.01), ratio) for codec, ratio in ratios.items()]


def test_a_step_is_longer_by_its_codec_and_shorter_by_its_bytes() -> None:
    # 100 steps of 0.5 s to encode and as much to decode; half of two thirds of 148.71 s less to send.
    assert times_longer(row("truncate:16", 0.5, 2.0)) == pytest.approx((196.35 - 148.71 / 3 + 100) / 196.35)


def test_verdicts_follow_from_the_times() -> None:
    good, explained, failed = Verdict.REPRODUCED, Verdict.EXPLAINED, Verdict.NOT_REPRODUCED
    slow = {"zlib": 4.0, "sz": 4.0}
    assert [claim.verdict for claim in EXHIBIT.claims(rows(**slow))] == [good, good, good, good, explained]
    assert [claim.verdict for claim in EXHIBIT.claims(rows(zlib=0.1, sz=0.1, truncate=1.0))] == [
        failed,
        failed,
        good,
        failed,
        explained,
    ]
    assert [claim.verdict for claim in EXHIBIT.claims(rows(**slow, inceptionn=0.8))][4] is failed
    incompressible = [each | {"payload_nbytes": 1e8} for each in rows(**slow)]
    assert EXHIBIT.claims(incompressible)[2].verdict is failed


def test_without_its_package_sz_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [codec for codec in CODECS if codec != SZ]
    for found, codecs in ((None, others), (object(), [*CODECS])):
        monkeypatch.setattr(figure_7, "find_spec", lambda _name, found=found: found)
        assert [cell["codec"] for cell in EXHIBIT.experiment.cells(EXHIBIT.quick)] == codecs
    without = [each for each in rows(zlib=4.0) if each["codec"] != SZ]
    assert len(EXHIBIT.claims(without)) == 4


def test_sz_keeps_its_bound() -> None:
    pytest.importorskip("pysz")
    gradient = torch.randn(10_000) * 1e-3
    encode, decode = figure_7._sz(gradient)
    decoded: Any = decode(encode())
    assert abs(decoded[0] - gradient.numpy()).max() <= 2**-10 * (1 + 1e-6)
    assert len(encode()) < 40_000 / 5


def test_codecs_are_timed_on_a_gradient() -> None:
    found = perform(EXHIBIT.experiment, Options(("zlib:1", "truncate:16"), 1), quiet=True)
    assert found[1]["nbytes"] == 2 * found[1]["payload_nbytes"]
    assert all(len(each["encode_s"]) == len(each["decode_s"]) == 1 for each in found)
    assert found[0]["nbytes"] > found[0]["payload_nbytes"]
