from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gradwire import Choice, choose_plan
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.choice import SCHEMA
from gradwire.planner.encodings import WEIGHTS
from gradwire.timing.environment import CodecCost, Environment
from gradwire.timing.line import HostCost

Make = Callable[..., Environment]
HOST = HostCost(send_s=5e-5, receive_s=5e-5, cores=16)
LOSSY = ("bf16", "quantize:8")


@pytest.fixture
def costs(environment: Make) -> Mapping[str, CodecCost]:
    return environment().codecs


def test_it_chooses_by_the_line(costs: Mapping[str, CodecCost]) -> None:
    slow = choose_plan(200_000, 3, rate="10mbit", codecs=LOSSY, costs=costs, host=HOST)
    assert str(slow.plan.codec) == "quantize:8"
    assert slow.explanation.startswith("quantize:8 over ring: a step of ")
    assert slow.prediction.step_s < slow.uncompressed.step_s
    fast = choose_plan(200_000, 3, rate=math.inf, latency=0.0, codecs=LOSSY, costs=costs, host=HOST)
    assert str(fast.plan.codec) == "identity"
    assert fast.explanation.startswith("no compression: identity over backend takes ")


def test_the_budget_is_kept(costs: Mapping[str, CodecCost]) -> None:
    def choose(largest_error: float) -> object:
        return choose_plan(
            200_000,
            3,
            rate="10mbit",
            codecs=[*LOSSY, "errbound:2^-10"],
            costs={**costs, "errbound:2^-10": CodecCost("errbound:2^-10", costs["bf16"].points)},
            host=HOST,
            largest_error=largest_error,
        )

    loose, tight, none = choose(1.0), choose(3.1e-5), choose(0.0)
    assert [each.admitted for each in loose.ranked.codecs] == [True] * 4  # type: ignore[attr-defined]
    assert str(loose.plan.codec) == "quantize:8"  # type: ignore[attr-defined]
    assert {str(each.codec) for each in tight.ranked.codecs if not each.admitted} == {  # type: ignore[attr-defined]
        "errbound:2^-10"
    }
    assert str(none.plan.codec) == "identity"  # type: ignore[attr-defined]
    assert "no other codec is within the accuracy budget" in none.explanation  # type: ignore[attr-defined]


def test_a_pipeline_is_offered_on_demand_and_named(costs: Mapping[str, CodecCost]) -> None:
    def choose(*pipelines: int) -> object:
        return choose_plan(
            200_000, 3, rate="1gbit", forward_s=0.01, codecs=(), costs=costs, host=HOST, pipelines=pipelines
        )

    assert choose(1).plan.pipeline == 1  # type: ignore[attr-defined]
    piped = choose(1, 2)
    assert piped.plan.pipeline == 2  # type: ignore[attr-defined]
    assert "while the average is in flight. In the meantime, each host" in piped.explanation  # type: ignore[attr-defined]


def test_the_plan_comes_back_from_its_file_and_from_the_json(
    tmp_path: Path, costs: Mapping[str, CodecCost]
) -> None:
    choice = choose_plan(
        [nn.Parameter(torch.zeros(300, 300)), nn.Parameter(torch.zeros(7))],
        3,
        rate="100mbit",
        backward_s=0.01,
        codecs=LOSSY,
        costs=costs,
        host=HOST,
    )
    choice.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == choice.plan
    values = json.loads(choice.to_json())
    assert values["schema"] == SCHEMA
    assert Plan.from_json(json.dumps(values["plan"])) == choice.plan
    assert values["prediction"]["step_s"] == choice.prediction.step_s
    assert [each["step_s"] for each in values["ranking"]] == [each.step_s for each in choice.ranked.ordered]
    assert {each["source"] for each in values["inputs"]} == {"given", "assumed"}


def test_codecs_are_measured_where_nobody_has() -> None:
    gradients = [torch.zeros(70_000), torch.zeros(70_000)]
    choice = choose_plan(70_000, 2, rate="1mbit", codecs=["errbound:2^-10"], gradients=gradients, host=HOST)
    assert choice.prediction.ratio > 15  # of zeros only the tags travel
    assert ("gradients", "2 recorded", "measured") in [
        (each.name, each.value, each.source) for each in choice.inputs
    ]


def with_lost(costs: Mapping[str, CodecCost], lost: float) -> dict[str, CodecCost]:
    """Return costs of which lossy codecs lose this share."""
    return {
        spec: replace(
            cost, points=tuple(replace(each, lost=0.0 if cost.exact else lost) for each in cost.points)
        )
        for spec, cost in costs.items()
    }


@pytest.mark.parametrize(("lost", "codec"), [(0.01, "quantize:8"), (0.9, "identity")])
def test_for_a_loss_what_a_codec_loses_counts(
    lost: float, codec: str, costs: Mapping[str, CodecCost]
) -> None:
    """At 100 Mbit/s a step takes half as long with compression; noise may cost as many steps again."""
    gradients = [torch.randn(200_000, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    known = with_lost(costs, lost)

    def choose(objective: str | None) -> Choice:
        return choose_plan(
            200_000,
            6,
            rate="100mbit",
            forward_s=0.03,
            codecs=["quantize:8"],
            algorithms=["backend", "ring"],
            objective=objective,
            gradients=gradients,
            costs=known,
            host=HOST,
        )

    assert str(choose("step").plan.codec) == "quantize:8"
    found = choose("loss")
    assert str(found.plan.codec) == codec
    assert found.ranking[0].to_loss_s == min(each.to_loss_s for each in found.ranking)
    assert json.loads(found.to_json())["objective"] == "loss"
    assert choose(None).environment.noise is None, "told costs need not say what codecs lose"


def test_what_is_asked_for_is_among_the_candidates(costs: Mapping[str, CodecCost]) -> None:
    known = dict.fromkeys(("errbound:2^-8", "scaled:errbound:2^-8", WEIGHTS), costs["bf16"])
    known |= dict.fromkeys(("projected:truncate:16", "scaled:projected:truncate:16"), costs["bf16"])
    choice = choose_plan(
        200_000,
        3,
        rate="10mbit",
        update_s=0.1,
        codecs=["errbound:2^-8"],
        sharded_lr=1e-3,
        scale="auto",
        nic="truncate:16",
        costs={**costs, **known},
        host=HOST,
    )
    plans = [each.plan for each in choice.ranking]
    assert {"auto", None} == {plan.scale for plan in plans}
    assert {"truncate:16", None} >= {plan.offload and str(plan.offload) for plan in plans}
    assert choice.plan.is_sharded, "a third of the update, and fewer bytes"
    assert ", sharded: a step of" in choice.explanation
    assert (
        "bits per change, at the learning rate 0.001"
        in {each.name: each.value for each in choice.inputs}["weights"]
    )


def test_costs_that_are_missing_are_named(costs: Mapping[str, CodecCost]) -> None:
    known = {"identity": costs["identity"]}
    with pytest.raises(SpecError, match="the costs of bf16 were not measured"):
        choose_plan(1000, 2, rate="1gbit", codecs=["bf16"], costs=known, host=HOST)


def test_groups_offer_the_hierarchy(costs: Mapping[str, CodecCost]) -> None:
    choice = choose_plan(
        200_000, 6, rate="10gbit", group_size=3, core_rate="100mbit", codecs=(), costs=costs, host=HOST
    )
    assert "hierarchical:3" in choice.request.all_algorithms
    flat = choose_plan(200_000, 6, rate="10gbit", codecs=(), costs=costs, host=HOST)
    assert choice.prediction.step_s > flat.prediction.step_s


@pytest.mark.parametrize("values", [{"codecs": ["zip"]}, {"hosts": 1}, {"rate": None}, {"model": "resnet"}])
def test_mistakes_are_found_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, object]
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it measured")

    monkeypatch.setattr("gradwire.planner.environment.measure_codecs", never)
    monkeypatch.setattr("gradwire.planner.environment.measure_host", never)
    with pytest.raises(SpecError):
        choose_plan(**{"model": 1000, "hosts": 4, "rate": "1gbit"} | values)  # type: ignore[arg-type]


def test_up_to_the_hosts_that_are_asked_for_the_choice_says_how_its_step_scales(
    costs: Mapping[str, CodecCost],
) -> None:
    choice = choose_plan(
        200_000, 3, rate="100mbit", forward_s=0.05, codecs=LOSSY, costs=costs, host=HOST, most_hosts=4
    )
    assert [each.hosts for each in choice.scaling] == [1, 2, 3, 4]
    assert choice.scaling[2].prediction == choice.prediction
