from __future__ import annotations

import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.errors import ExchangeError, TensorError
from gradwire.sync.layout import Layout, Layouts
from support import mixed
from support.fake_buckets import FakeBucket, reducer_over
from support.ranks import run_ranks

PARAMETERS = [torch.zeros(2, 3), torch.zeros(2), torch.zeros(4)]
NAMES = dict(zip(PARAMETERS, ("a.weight", "a.bias", "b.bias"), strict=True))
PLAN = Plan.of("bf16", codecs=[{"match": "bias$", "codec": "identity"}])


def bucket(*owners: torch.Tensor) -> FakeBucket:
    return FakeBucket(1, torch.zeros(sum(each.numel() for each in owners)), owners=[*owners])


def test_a_layout_is_kept_for_the_parameters_and_not_for_unknown_ones() -> None:
    def run(link: Link) -> None:
        reducer, sync = reducer_over(Exchange(link, PLAN), NAMES)
        found = reducer.layout_of(bucket(*PARAMETERS[:2]))
        assert (found.names, found.counts) == (("a.weight", "a.bias"), (6, 2))
        assert reducer.layout_of(bucket(*PARAMETERS[:2])) is found
        strange = bucket(PARAMETERS[2], torch.zeros(5))
        assert reducer.layout_of(strange).names == ("b.bias", "a parameter of bucket 1")
        assert reducer.layout_of(strange) is not reducer.layout_of(strange)
        sync.close()

    run_ranks(1, run)


def test_residuals_need_the_names_of_all_parameters() -> None:
    def run(link: Link) -> None:
        reducer, _ = reducer_over(Exchange(link, Plan.of("topk:0.5")), NAMES)
        with pytest.raises(TensorError, match=r"rank 0: expected only .* got one of shape \(5,\) that"):
            reducer.layout_of(bucket(PARAMETERS[2], torch.zeros(5)))
        with pytest.raises(ExchangeError, match=r"failed earlier .* of shape"):
            reducer.take(bucket(PARAMETERS[2]), last_waits=True)

    run_ranks(1, run)


def test_only_a_plan_with_several_codecs_divides_and_another_plan_does_so_anew() -> None:
    names = tuple(NAMES.values())
    one = Layout(names, (6, 2, 4), (frozenset(names),) * 3)
    layouts = Layouts(names)
    assert layouts.views(one, Plan(), 2) is None
    first = layouts.views(one, PLAN, 2)
    assert first is not None
    assert layouts.views(one, PLAN, 2) is first
    assert layouts.views(one, Plan.of("fp8", codecs=PLAN.codecs), 2) is not first
    assert layouts.views(one, Plan(), 2) is None


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
        assert "rule 'embedding' (" in result["refused"]
        assert "codecs is " in result["differ"]
        assert torch.equal(result["weights"], results[0]["weights"])
