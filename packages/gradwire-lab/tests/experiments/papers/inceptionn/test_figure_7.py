from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Claim, Verdict
from gradwire_lab.experiments.experiment import Row
from gradwire_lab.experiments.papers.inceptionn import figure_7
from gradwire_lab.experiments.papers.inceptionn.figure_7 import (
    CODECS,
    EXHIBIT,
    LEARNED,
    NETWORK,
    PACKAGES,
    SNAPPY,
    SZ,
    InceptionnFigure7Options,
    Timed,
)


def row(codec: str, seconds: float, ratio: float) -> dict[str, Any]:
    sizes = {"nbytes": 233_000_000, "payload_nbytes": 233e6 / ratio}
    times = {"encode_s": [seconds], "decode_s": [seconds / 4]}
    of = {"codec": codec, "network": LEARNED, "data": "digits", "accuracy": 0.95}
    return {**of, **sizes, **times, "tool": f"{PACKAGES.get(codec, 'gradwire')} 1.0"}


def rows(**seconds: float) -> list[dict[str, Any]]:
    """Of three seeds."""
    ratios = dict(zip(CODECS, (1.3, 20.0, 1.3, 2.0, 10.0), strict=True))
    one = [row(codec, seconds.get(codec.split(":")[0], 0.01), ratio) for codec, ratio in ratios.items()]
    return [{**each, "seed": seed} for seed in (1, 2, 3) for each in one]


def by_hdc(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims by the gradient of a whole training."""
    return [*EXHIBIT.claims(rows)][:5]


def test_a_step_is_longer_by_its_codec_and_shorter_by_its_bytes() -> None:
    # 100 steps of 0.5 s to encode and as much to decode; half of two thirds of 148.71 s less to send.
    step = Timed(rows(truncate=0.5), "truncate:16").times_longer
    assert step == pytest.approx((196.35 - 148.71 / 3 + 100) / 196.35)


def test_verdicts_follow_from_the_times() -> None:
    modelled, good = Verdict.MODELLED, Verdict.REPRODUCED
    explained, failed = Verdict.EXPLAINED, Verdict.NOT_REPRODUCED
    slow = {"snappy": 1.5, "sz": 2.0}

    def verdicts(**seconds: float) -> list[Verdict]:
        return [claim.verdict for claim in by_hdc(rows(**seconds))]

    assert verdicts(**slow) == [modelled, modelled, good, modelled, explained]
    assert verdicts(snappy=0.1, sz=0.1, truncate=1.0) == [failed, failed, good, failed, explained]
    assert verdicts(snappy=20.0, sz=20.0)[:2] == [failed, failed], "a rule has two sides"
    assert verdicts(**slow, inceptionn=0.8)[4] is failed
    incompressible = [each | {"payload_nbytes": 1e8} for each in rows(**slow)]
    assert by_hdc(incompressible)[2].verdict is failed


def test_another_tool_in_the_place_of_the_named_one_turns_the_verdict() -> None:
    assert EXHIBIT.claims(rows())[2].verdict is Verdict.REPRODUCED
    for tool in ({"tool": "zlib 1.3"}, {"tool": None}):
        swapped = [row | tool if row["codec"] == SNAPPY and tool["tool"] else row for row in rows()]
        if tool["tool"] is None:
            swapped[0].pop("tool")
        ratio = EXHIBIT.claims(swapped)[2]
        assert ratio.verdict is Verdict.NOT_REPRODUCED
        assert "expected snappy of the package cramjam, got" in ratio.explained


def test_gradients_of_dead_trainings_count_for_nothing() -> None:
    slow = rows(snappy=1.5, sz=2.0)
    dead = by_hdc([{**each, "accuracy": 0.1} for each in slow])
    assert {each.verdict for each in dead} == {Verdict.DID_NOT_LEARN}
    short = [each.verdict for each in by_hdc(slow[: len(CODECS)])]
    assert short == [Verdict.TOO_SHORT] * 5


def test_a_codec_without_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_7, "find_spec", lambda _name: None)
    found = perform(EXHIBIT.experiment, InceptionnFigure7Options((SNAPPY, SZ), (1,), 2, 1), quiet=True)
    assert [row["missing"] for row in found] == [
        f"the package {each} is not installed (extra papers)." for each in ("cramjam", "pysz")
    ]
    claims = by_hdc([*found, *(each for each in rows() if each["codec"] not in (SNAPPY, SZ))])
    assert [claim.text for claim in claims if claim.verdict is Verdict.NOT_RUN] == [
        "AlexNet's time with Snappy, over that without",
        "AlexNet's time with SZ, over that without",
        "ratio of Snappy",
    ]
    assert claims[0].explained.endswith("the package cramjam is not installed (extra papers).")


def test_a_gradient_of_first_steps_is_too_short_for_a_verdict() -> None:
    slow = {"snappy": 1.5, "sz": 2.0}
    assert {claim.verdict for claim in EXHIBIT.claims(rows(**slow))[5:]} == {Verdict.NOT_RUN}
    alexnet = [
        {key: value for key, value in each.items() if key != "accuracy"}
        | {"network": NETWORK, "data": "imagenet", "losses": [6.9, 6.8]}
        for each in rows(**slow)[: len(CODECS)]
    ]
    both = EXHIBIT.claims([*rows(**slow), *alexnet])
    assert [claim.verdict for claim in both[5:]] == [Verdict.TOO_SHORT] * 5
    assert "AlexNet's gradient" in both[7].system
    diverged = [each | {"losses": [6.9, float("nan")]} for each in alexnet]
    assert {each.verdict for each in EXHIBIT.claims([*rows(), *diverged])[5:]} == {Verdict.DID_NOT_LEARN}


def test_snappy_is_snappy() -> None:
    cramjam = pytest.importorskip("cramjam")
    gradient = torch.randn(10_000) * 1e-3
    encode, decode = figure_7._functions(SNAPPY, gradient)
    decoded: Any = decode(encode())
    assert bytes(decoded) == gradient.numpy().tobytes()
    assert bytes(cramjam.snappy.decompress_raw(bytes(encode()))) == gradient.numpy().tobytes()


def test_sz_keeps_its_bound() -> None:
    pytest.importorskip("pysz")
    gradient = torch.randn(10_000) * 1e-3
    encode, decode = figure_7._sz(gradient)
    decoded: Any = decode(encode())
    assert abs(decoded[0] - gradient.numpy()).max() <= 2**-10 * (1 + 1e-6)
    assert len(encode()) < 40_000 / 5


def test_codecs_are_timed_on_a_gradient() -> None:
    found = perform(
        EXHIBIT.experiment, InceptionnFigure7Options(("lossless", "truncate:16"), (1,), 4, 1), quiet=True
    )
    assert found[1]["nbytes"] == 2 * found[1]["payload_nbytes"]
    assert all(len(each["encode_s"]) == len(each["decode_s"]) == 1 for each in found)
    assert found[0]["nbytes"] > found[0]["payload_nbytes"]
