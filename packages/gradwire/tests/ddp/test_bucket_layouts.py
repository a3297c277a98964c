from __future__ import annotations

import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.ddp.buckets import BucketLayouts
from support import mixed
from support.fake_buckets import FakeBucket
from support.ranks import run_ranks

PARAMETERS = [torch.zeros(2, 3), torch.zeros(2), torch.zeros(4)]
NAMES = dict(zip(PARAMETERS, ("a.weight", "a.bias", "b.bias"), strict=True))
PLAN = Plan.of("bf16", codecs=[{"match": "bias$", "codec": "identity"}])


def bucket(*owners: torch.Tensor) -> FakeBucket:
    return FakeBucket(1, torch.zeros(sum(each.numel() for each in owners)), owners=[*owners])


def test_a_layout_is_kept_for_the_parameters_and_not_for_unknown_ones() -> None:
    def run(link: Link) -> None:
        layouts = BucketLayouts(Exchange(link, PLAN), NAMES)
        found = layouts.of(bucket(*PARAMETERS[:2]))
        assert (found.names, found.counts) == (("a.weight", "a.bias"), (6, 2))
        assert layouts.of(bucket(*PARAMETERS[:2])) is found
        strange = bucket(PARAMETERS[2], torch.zeros(5))
        assert layouts.of(strange).names == ("b.bias", "a parameter of bucket 1")
        assert layouts.of(strange) is not layouts.of(strange)

    run_ranks(1, run)


def test_only_a_plan_with_several_codecs_divides_and_another_plan_does_so_anew() -> None:
    def run(link: Link) -> None:
        exchange = Exchange(link, Plan())
        layouts, one = BucketLayouts(exchange, NAMES), bucket(*PARAMETERS)
        assert layouts.views(one) is None
        exchange.follow(PLAN)
        first = layouts.views(one)
        assert first is not None
        assert layouts.views(one) is first
        exchange.follow(Plan.of("fp8", codecs=PLAN.codecs))
        assert layouts.views(one) is not first
        exchange.follow(Plan())
        assert layouts.views(one) is None

    run_ranks(1, run)


@pytest.mark.processes
def test_ddp_exchanges_every_parameter_with_its_codec(run_processes: mixed.RunProcesses) -> None:
    results = run_processes(2, mixed.first_averages)
    own = [result["own"] for result in results]
    for name, average in results[0]["averages"].items():
        assert torch.equal(average, results[1]["averages"][name])
        exact = mixed.exact_mean(own[0][name], own[1][name])
        if name.endswith("bias"):
            assert torch.equal(average, exact)
        else:
            assert mixed.is_bf16_mean(average, own[0][name], own[1][name])
            assert not torch.equal(average, exact)
    assert results[0]["plan"] == mixed.BIASES_EXACT
    for result in results:
        assert "match 'embedding', but this model has none" in result["refused"]
        assert "codecs is " in result["differ"]
        assert torch.equal(result["weights"], results[0]["weights"])
