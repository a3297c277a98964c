"""How far predictions may be off: what the model may, or what the repeats of a calibration disagree by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gradwire.planner.candidates import Workload
from gradwire.planner.predict import MOST, UNCERTAINTY, Ranking, rank, uncertainty_of
from gradwire.timing.environment import Environment
from support.planner_costs import make_request

Environments = Callable[..., Environment]
WORKLOAD = Workload((1 << 21, 1 << 21), forward_s=0.02, backward_s=0.04)


def chosen(environment: Environment) -> Ranking:
    return rank(make_request(WORKLOAD, ["bf16"]), environment, 4)


def noisy(environment: Environment, spec: str, disagreement: float) -> Environment:
    costs = {**environment.codecs, spec: replace(environment.cost(spec), disagreement=disagreement)}
    return replace(environment, codecs=costs)


def test_repeats_that_agree_leave_what_the_model_may_be_off(environment: Environments) -> None:
    known = environment()
    assert uncertainty_of(chosen(known), known) == UNCERTAINTY


@pytest.mark.parametrize("who", ["prediction", "uncompressed"])
def test_a_codec_whose_repeats_disagree_counts_by_its_share_of_the_step(
    who: str, environment: Environments
) -> None:
    known = environment()
    ranking = chosen(known)
    prediction: Any = getattr(ranking, who)
    spec = str(prediction.plan.codec)
    disagreement = 0.5 * prediction.step_s / prediction.cost.codec_s
    assert uncertainty_of(ranking, noisy(known, spec, disagreement)) == pytest.approx(0.5)


def test_a_host_whose_repeats_disagree_counts_by_its_handling(environment: Environments) -> None:
    known = environment()
    ranking = chosen(known)
    both = (ranking.prediction, ranking.uncompressed)
    host = replace(known.host, disagreement=30.0)
    wanted = max(30.0 * each.cost.handling_s / each.step_s for each in both)
    assert UNCERTAINTY < wanted < MOST
    assert uncertainty_of(ranking, replace(known, host=host)) == pytest.approx(wanted)


def test_no_noise_forbids_every_comparison(environment: Environments) -> None:
    known = environment()
    assert uncertainty_of(chosen(known), noisy(known, "identity", 1e9)) == MOST
