from __future__ import annotations

import pytest

from gradwire import Plan
from gradwire.autotune.contract import RelativeErrors
from gradwire.autotune.decide import Mixture
from gradwire.codecs import Identity, parse
from gradwire.planner.candidates import Workload
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import Predictor
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line

Q4, Q8, BF16 = parse("quantize:4"), parse("quantize:8"), parse("bf16")
COUNTS = {"weight": 600, "other": 300, "bias": 100}
NBYTES = {Identity(): 4.0, Q4: 0.5, Q8: 1.0, BF16: 2.0}
LOST = RelativeErrors(
    COUNTS,
    {
        Identity(): dict.fromkeys(COUNTS, 0.0),
        Q4: {"weight": 0.1, "other": 0.4, "bias": 0.5},
        Q8: {"weight": 0.05, "other": 0.2, "bias": 0.3},
        BF16: dict.fromkeys(COUNTS, 0.01),
    },
    NBYTES,
    0.2,
)
FREE = HostCost()
MIXTURE = Mixture.of(Q4, frozenset({"other", "bias"}), LOST)


def predictor(latency_s: float, rate: float = 1e8, host: HostCost = FREE) -> Predictor:
    costs = {
        str(codec): CodecCost(str(codec), (CodecPoint(1, nbytes, 0.0, 0.0, 0.0),), exact=codec.EXACT)
        for codec, nbytes in NBYTES.items()
    }
    workload = Workload((1 << 22,), forward_s=0.01, backward_s=0.0)
    return Predictor(workload, 4, Family(Environment(Line(latency_s, rate), costs, host)))


def test_each_parameter_counts_with_its_values_and_its_codec() -> None:
    assert MIXTURE.gentler == {"other": Q8, "bias": BF16}
    assert MIXTURE.parts == {Q8: pytest.approx(0.3), BF16: pytest.approx(0.1)}
    assert MIXTURE.noise == pytest.approx(0.6 * 0.1**2 + 0.3 * 0.2**2 + 0.1 * 0.01**2)
    assert MIXTURE.slack == pytest.approx(0.4 + MIXTURE.noise)


def test_bytes_and_times_are_those_of_all_codecs_by_their_shares() -> None:
    at, plans = predictor(0.0), {codec: Plan(codec, residual=False) for codec in NBYTES}
    seconds = {codec: at.predict(plan).step_s for codec, plan in plans.items()}
    shared = 0.6 * seconds[Q4] + 0.3 * seconds[Q8] + 0.1 * seconds[BF16]
    assert MIXTURE.step_s(plans[Q4], at, 1) == pytest.approx(shared, rel=1e-3)
    floats = 6 / 4 * (1 << 22)  # what a rank of a ring sends
    nbytes = MIXTURE.nbytes(plans[Q4], at)
    assert nbytes == pytest.approx(floats * (0.6 * 0.5 + 0.3 * 1.0 + 0.1 * 2.0), rel=0.01)


def test_another_codec_adds_no_latency() -> None:
    latency_s = 1e-2
    own, slow = (Plan(Q4, residual=False), predictor(latency_s))
    without = predictor(0.0)
    alone = Mixture.of(Q4, frozenset(), LOST)
    assert alone.step_s(own, slow, 1) == slow.predict(own).step_s
    more_s = MIXTURE.step_s(own, slow, 1) - MIXTURE.step_s(own, without, 1)
    assert more_s == pytest.approx(6 * latency_s, rel=0.1), "six steps of a ring, each for three codecs"


def test_another_codec_adds_the_work_of_its_frames() -> None:
    own, alone = Plan(Q4, residual=False), Mixture.of(Q4, frozenset(), LOST)
    busy, free = predictor(0.0, 1e15, HostCost(send_s=1e-3, receive_s=2e-3)), predictor(0.0, 1e15)
    several_s, one_s = (each.step_s(own, busy, 1) - each.step_s(own, free, 1) for each in (MIXTURE, alone))
    assert several_s - one_s == pytest.approx(2 * 6 * 3e-3, rel=0.1), "two more codecs, six steps of a ring"
