"""A request: one object for Python, the command line and the record."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradwire.codecs import FREE_OF_SCALE, parse
from gradwire.errors import SpecError, TensorError
from gradwire.planner.candidates import ALGORITHMS, Workload
from gradwire.planner.request import ASSUMED_LATENCY_S, Objective, PlanRequest
from gradwire.records import to_json
from gradwire.timing.line import HostCost, Line, LineRate, Point
from support.planner_costs import codec_cost

POINTS = [Point(1, 2e-4, 1e3, 1e3), Point(1 << 22, 0.04, 1.1e8, 1.1e8)]
JUNK: tuple[object, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1 << 70,
        10**400,
        0.5,
        1e308,
        math.nan,
        math.inf,
        "",
        "x",
        "ring",
        "a\x1b[31m\n\x00",
    ),
    *("\ud800", [], [[]], [None], [1.5, "x"], {}, {"": {}}, {"a": [{}]}),
)


def ask(**values: object) -> PlanRequest:
    return PlanRequest.of(**{"model": 1000, "hosts": 4, "rate": "1gbit"} | values)  # type: ignore[arg-type]


def test_the_line_is_told() -> None:
    told = ask(latency="20us").found_line
    assert told.latency_s == pytest.approx(2e-5)
    assert told.nbytes_per_s == 1.25e8
    assert ask(rate=5e7).found_line == Line(ASSUMED_LATENCY_S, 5e7)
    assert ask(rate="unlimited", latency=0.0).found_line == Line(0.0, math.inf)


def test_the_line_is_measured(tmp_path: Path) -> None:
    rate = LineRate.of(POINTS)
    path = tmp_path / "line.json"
    path.write_text(rate.to_json())
    for given_line in (path, str(path), rate, rate.line):
        request = ask(rate=None, line=given_line)
        assert request.found_line == rate.line
        assert (request.line_rate is None) == (given_line is rate.line)


def test_a_model_is_what_is_trained() -> None:
    first, second = nn.Linear(3, 4), nn.Linear(4, 2)
    model = nn.Sequential(first, second)
    first.bias.requires_grad_(False)
    seconds = {"forward_s": 1.0, "backward_s": 2.0, "update_s": 3.0}
    found = ask(model=model, **seconds)
    assert found.model == (12, 8, 2)
    assert found.workload == Workload((12, 8, 2), 1.0, 2.0, 3.0)
    tied = [second.weight, second.weight]
    assert ask(model=nn.ParameterList(tied)).model == ask(model=[8]).model == (8,)
    assert ask(model=1000).workload == Workload.of_count(1000)


def test_a_factory_has_no_sizes_before_it_is_called() -> None:
    with pytest.raises(SpecError, match=r"expected the sizes of a model, got the factory nets:net"):
        _ = ask(model="nets:net").workload


def test_what_is_not_said_has_its_default() -> None:
    found = ask()
    assert found.encodings == tuple(map(parse, FREE_OF_SCALE))
    assert found.all_algorithms == ALGORITHMS
    assert found.exchanges == ("all_reduce",)
    assert ask(group_size=2, core_rate="1gbit").all_algorithms == (*ALGORITHMS, "hierarchical:2")
    assert ask(sharded_lr=1e-3).exchanges == ("all_reduce", "sharded")


def test_words_become_values() -> None:
    found = ask(
        codecs=["bf16", parse("quantize:8")], nic="inceptionn:2^-10", algorithms=["ring"], pipelines=[1, 2]
    )
    assert found.codecs == (parse("bf16"), parse("quantize:8"))
    assert (found.nic, found.algorithms, found.pipelines) == (parse("inceptionn:2^-10"), ("ring",), (1, 2))
    assert ask(objective="step").objective is Objective.STEP


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        ({"hosts": 0}, SpecError, "expected at least 2 hosts"),
        ({"hosts": 1}, SpecError, "expected at least 2 hosts"),
        ({"hosts": 2.5}, SpecError, "expected at least 2 hosts"),
        ({"group_size": 4, "core_rate": 1e8}, SpecError, "groups of 2 to 3 hosts, got 4"),
        ({"hosts": 2, "group_size": 2, "core_rate": 1e8}, SpecError, "expected at least 3 hosts"),
        ({"group_size": 2, "core_rate": 0}, SpecError, "for core_rate, got 0"),
        ({"group_size": 2, "core_rate": math.nan}, SpecError, "for core_rate, got nan"),
        ({"group_size": 2, "core_rate": [1]}, SpecError, "for core_rate, got .1."),
        ({"group_size": 2}, SpecError, "expected both group_size and core_rate"),
        ({"core_rate": 1e8}, SpecError, "expected both group_size and core_rate"),
        ({"rate": None}, SpecError, "expected the network's rate, got none"),
        ({"rate": None, "latency": "5us"}, SpecError, "expected the network's rate, got none"),
        ({"rate": "fast"}, SpecError, "expected a rate such as"),
        ({"rate": 0.0}, SpecError, "above 0 for nbytes_per_s in a link, got 0"),
        ({"latency": "5"}, SpecError, "expected a time such as"),
        ({"line": Line(0.0, 1.0)}, SpecError, "either a measured link or its rate, got both"),
        ({"rate": None, "line": 3}, SpecError, "a LineRate or its file for line, got 3"),
        ({"host": 3}, SpecError, "expected a HostCost or None for host, got 3"),
        ({"costs": 3}, SpecError, "expected a mapping from specs to CodecCosts for costs, got 3"),
        ({"most_hosts": -1}, SpecError, "expected most_hosts of at least 0, got -1"),
        ({"codecs": ["zip"]}, SpecError, "unknown codec 'zip'"),
        ({"algorithms": ["gossip"]}, SpecError, "unknown algorithm 'gossip'"),
        ({"algorithms": []}, SpecError, "one or more algorithms"),
        ({"pipelines": (0,)}, SpecError, "from 1 to 1024 for pipeline, got 0"),
        ({"pipelines": ()}, SpecError, "one or more pipelines"),
        ({"largest_error": -1.0}, SpecError, "expected a number of at least 0 for the largest error"),
        ({"largest_error": math.nan}, SpecError, "expected a number of at least 0 for the largest error"),
        ({"largest_error": math.inf}, SpecError, "expected a number of at least 0 for the largest error"),
        ({"gradients": []}, TensorError, "expected tensors for gradients, got an empty list"),
        ({"gradients": torch.ones(9)}, TensorError, "expected a list of tensors for gradients, got a Tensor"),
        ({"gradients": [torch.ones(999)]}, TensorError, "expected at least 1000 values .*, got 999"),
        ({"model": 0}, SpecError, "whole number of at least 1 parameter"),
        ({"model": 10**99}, SpecError, "at most 1000000000000000 parameters in a model, got 1e.99"),
        ({"model": "resnet"}, SpecError, "torch.nn.Module, .* package.module:name, got 'resnet'"),
        ({"model": "a b:c"}, SpecError, "package.module:name, got 'a b:c'"),
        ({"model": ":net"}, SpecError, "package.module:name, got ':net'"),
        ({"model": 25.6e6}, SpecError, "torch.nn.Module, .* got 25600000.0"),
        ({"model": [nn.Parameter(torch.ones(2)), 3]}, SpecError, "torch.nn.Module, .* got 3"),
        ({"model": torch.ones(2)}, SpecError, "torch.nn.Module, .* got tensor"),
        ({"model": nn.LazyLinear(2)}, SpecError, "got lazy parameters; run a forward pass first"),
        ({"model": ()}, SpecError, "expected parameter sizes"),
        ({"codecs": "bf16"}, SpecError, "expected a list for codecs, got 'bf16'"),
        ({"algorithms": "ring"}, SpecError, "expected a list for algorithms, got 'ring'"),
        ({"pipelines": 2}, SpecError, r"expected a list for pipelines, got 2; write \[2\]"),
        ({"objective": "loss"}, SpecError, "expected recorded gradients for the objective 'loss'"),
        ({"objective": "time"}, SpecError, "expected 'step' or 'loss' for the objective, got 'time'"),
        ({"scale": "auto"}, SpecError, "scale: expected a codec with an absolute bound"),
        ({"nic": "quantize:8"}, SpecError, "expected a codec that NICs can apply"),
        *(
            ({"sharded_lr": rate}, SpecError, "expected a learning rate above 0 for sharded training")
            for rate in (0, -1.0, math.nan, math.inf, True, "1e-3")
        ),
        ({"backward_s": -1.0}, SpecError, "for backward_s in a training step, got -1"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason) as caught:
        ask(**values)
    assert "\n" not in str(caught.value)


LINES = st.one_of(
    st.builds(
        lambda rate, latency: {"rate": rate, "latency": latency},
        st.sampled_from(["1gbit", 5e7, math.inf]),
        st.sampled_from([None, "20us", 0.0]),
    ),
    st.sampled_from(
        [Line(1e-4, math.inf), LineRate.of(POINTS), LineRate.of(POINTS, HostCost(1e-4)), Path("l.json")]
    ).map(lambda line: {"rate": None, "line": line}),
)
OTHERS = st.fixed_dictionaries(
    {"model": st.sampled_from([1000, (60, 40), "nets:net"]), "hosts": st.integers(3, 9)},
    optional={
        "forward_s": st.floats(0, 10),
        "backward_s": st.floats(0, 10),
        "update_s": st.floats(0, 10),
        "gradients": st.just(Path("g.pt")),
        "elsewhere": st.booleans(),
        "shared_machine": st.booleans(),
        "codecs": st.sampled_from([(), ("bf16", "errbound:2^-8")]),
        "largest_error": st.floats(0, 1),
        "algorithms": st.sampled_from([("ring",), ("star", "hierarchical:2")]),
        "pipelines": st.sampled_from([(1,), (1, 2)]),
        "objective": st.just("step"),
        "nic": st.just("inceptionn:2^-10"),
        "sharded_lr": st.floats(1e-6, 1),
        "most_hosts": st.integers(0, 256),
        "host": st.just(HostCost(1e-4, cores=4)),
        "costs": st.just({"bf16": codec_cost("bf16", 2.0), "identity": codec_cost("identity", 4.0)}),
    },
)


@given(LINES, OTHERS)
def test_every_request_comes_back_from_its_record(line: dict[str, object], others: dict[str, object]) -> None:
    request = ask(**others, **line)
    assert PlanRequest.from_values(json.loads(to_json(request.to_values()))) == request


def test_what_is_missing_in_a_record_has_its_default() -> None:
    assert PlanRequest.from_values({"model": 1000, "hosts": 4, "rate": "1gbit"}) == ask()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "expected an object with named fields for a plan's request"),
        ({"hosts": 4}, "no field 'model'"),
        ({"model": 1000, "hosts": 4, "speed": 1}, "the unknown field 'speed'"),
        ({"model": 1000, "hosts": 1, "rate": "1gbit"}, "expected at least 2 hosts"),
        ({"model": 1000, "hosts": 4, "line": {"latency_s": 0}}, "no field 'nbytes_per_s'"),
        (
            {"model": 1000, "hosts": 4, "rate": "1gbit", "elsewhere": 1},
            "expected true or false for elsewhere",
        ),
        (
            {"model": 1000, "hosts": 4, "rate": "1gbit", "gradients": {"tensors": 2}},
            "got tensors of another process; save gradients in a file",
        ),
    ],
)
def test_a_damaged_record_is_refused(values: object, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        PlanRequest.from_values(values)


def test_a_record_with_any_damage_is_read_or_refused_in_a_sentence() -> None:
    line = LineRate.of(POINTS, HostCost(1e-4))
    costs = {"bf16": codec_cost("bf16", 2.0)}
    request = ask(rate=None, line=line, codecs=["bf16"], host=HostCost(1e-4), costs=costs)
    state, refused = json.loads(json.dumps(request.to_values())), []
    for name in state:
        for junk in JUNK:
            try:
                PlanRequest.from_values(state | {name: junk})
            except SpecError as error:
                refused.append(str(error))
    assert all(map(str.isprintable, refused))
    assert len(refused) > 200


def test_tensors_are_only_counted() -> None:
    assert ask(model=2, gradients=[torch.ones(2), torch.ones(2)]).to_values()["gradients"] == {"tensors": 2}


def test_every_field_has_an_option_but_what_only_python_can_say() -> None:
    assert {each.name for each in fields(PlanRequest) if not each.metadata} == {"host", "costs"}
