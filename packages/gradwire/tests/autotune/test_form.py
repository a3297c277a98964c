from __future__ import annotations

import torch

from gradwire.autotune.contract import RelativeErrors
from gradwire.autotune.costs import at_once
from gradwire.autotune.decide import decide
from gradwire.autotune.settings import BUCKETS, DEFAULT, SHARDS, whole
from gradwire.codecs import Identity, parse
from gradwire.plan import Plan
from gradwire.planner.candidates import Workload
from gradwire.timing.calibrate import codec_cost
from gradwire.timing.environment import Environment
from gradwire.timing.line import HostCost, Line


def test_rules_have_names_of_their_own() -> None:
    assert len({each.name for each in (BUCKETS, SHARDS, whole(1), whole(2))}) == 4


def test_shards_go_through_half_a_ring_with_one_codec_for_all() -> None:
    codecs = [Identity(), parse("fp8"), parse("quantize:4")]
    part = torch.randn(1 << 12)
    costs = {str(each): codec_cost(each, [part], 1, 1 << 20) for each in codecs}
    environment = Environment(Line(1e-4, 1e6), costs, HostCost(cores=4))
    shares = {codecs[0]: {"a": 0.0, "b": 0.0}, codecs[1]: {"a": 0.03, "b": 0.03}}
    shares[codecs[2]] = {"a": 0.1, "b": 0.9}
    found = {}
    for rules in (BUCKETS, SHARDS):
        counts, nbytes = {"a": 900_000, "b": 100_000}, dict.fromkeys(codecs, 4.0)
        lost = RelativeErrors(counts, shares, nbytes, 0.25, rules.most_excepted(DEFAULT))
        workload = Workload((1_000_000,))
        found[rules.name] = at_once(decide(environment, workload, 4, {"ring": lost}, Plan(), rules.half))[0]
    assert str(found["buckets"].plan.codec) == "quantize:4"
    assert found["buckets"].plan.codecs
    assert str(found["shards"].plan.codec) == "fp8", "quantize:4 does not suit b"
    assert not found["shards"].plan.codecs
    share = found["shards"].uncompressed_s / found["buckets"].uncompressed_s
    assert 0.4 < share < 0.6


def test_only_fsdp_s_parameters_lie_side_by_side_where_they_are_encoded() -> None:
    assert [each.places for each in (BUCKETS, whole(1), whole(2), SHARDS)] == [True, True, True, False]
