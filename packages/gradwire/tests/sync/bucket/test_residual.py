from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradwire import DSync, PipeSGD
from gradwire.codecs import Codec, parse
from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.bucket.residual import Residuals, redivide
from gradwire.sync.flat.gradients import cut
from gradwire.sync.method import WorkerMethod
from support.pipes import pipe_sgd
from support.project import DOCS

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
LR = 2.0**-4  # lr * gradient is exact, so the oracle rounds where torch rounds
KEEPING = Plan(parse("topk:0.2"), "star")


def of(residuals: Residuals, key: str, count: int) -> torch.Tensor:
    found = residuals.of(key, count)
    assert found is not None
    return found


def filled(rank: int = 0, world: int = 1, **values: list[float]) -> Residuals:
    """Residuals with these contents."""
    residuals = Residuals(KEEPING, rank, world)
    for key, content in values.items():
        of(residuals, key, len(content)).copy_(torch.tensor(content))
    return residuals


def contents(residuals: Residuals) -> dict[str, list[float]]:
    return {key: tensor.tolist() for key, tensor in residuals.state_dict()["residuals"].items()}


def test_a_residual_begins_at_zero_and_stays_the_same_tensor() -> None:
    residuals = Residuals(KEEPING, 0, 1)
    first = of(residuals, "a", 3)
    assert (first.dtype, first.tolist()) == (torch.float32, [0, 0, 0])
    assert of(residuals, "a", 3) is first
    assert of(residuals, "b", 3) is not first
    with pytest.raises(StateError, match="expected 4 elements in the residual 'a', got 3"):
        residuals.of("a", 4)


@pytest.mark.parametrize("plan", [Plan(), Plan(parse("quantize:8")), Plan(parse("topk:0.1"), residual=False)])
def test_a_plan_that_keeps_none_takes_no_memory(plan: Plan) -> None:
    residuals = Residuals(plan, 1, 2)
    assert residuals.of("a", 1 << 60) is None
    assert residuals.state_dict() == {"rank": 1, "world": 2, "residuals": {}}
    residuals.load_state_dict(residuals.state_dict())


def test_a_state_survives_a_file_and_is_no_view() -> None:
    residuals = filled(1, 2, a=[1.0, -2.0], b=[3.0])
    file = io.BytesIO()
    torch.save(residuals.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    of(residuals, "a", 2).fill_(7.0)
    again = Residuals(KEEPING, 1, 2)
    again.load_state_dict(state)
    assert contents(again) == {"a": [1.0, -2.0], "b": [3.0]}
    of(again, "b", 1).fill_(9.0)
    assert state["residuals"]["b"].tolist() == [3.0]


def test_loading_changes_the_tensors_that_are_in_use() -> None:
    residuals = filled(a=[1.0, 2.0], b=[3.0])
    held = of(residuals, "a", 2), of(residuals, "b", 1)
    residuals.load_state_dict(filled(a=[5.0, 6.0], c=[7.0]).state_dict())
    assert [each.tolist() for each in held] == [[5.0, 6.0], [0.0]]
    assert of(residuals, "c", 1).tolist() == [7.0]
    assert of(residuals, "a", 2) is held[0]


def test_a_loaded_residual_is_refused_to_a_bucket_of_another_length() -> None:
    residuals = Residuals(KEEPING, 0, 1)
    residuals.load_state_dict(filled(a=[1.0, 2.0]).state_dict())
    with pytest.raises(StateError, match="expected 3 elements in the residual 'a', got 2; load"):
        residuals.of("a", 3)


def test_where_the_keys_are_known_a_state_with_others_changes_nothing() -> None:
    residuals = Residuals(KEEPING, 0, 1, {"a": 2, "b": 1})
    residuals.load_state_dict(filled(a=[1.0, 2.0]).state_dict())
    for strange, reason in (
        (filled(a=[5.0, 6.0], c=[7.0]), "residuals of this model's parameters, got a residual of c;"),
        (filled(a=[5.0, 6.0], b=[7.0, 8.0]), "expected 1 elements in the residual 'b', got 2"),
    ):
        with pytest.raises(StateError, match=reason):
            residuals.load_state_dict(strange.state_dict())
    assert of(residuals, "a", 2).tolist() == [1.0, 2.0]


GOOD: dict[str, Any] = {"rank": 0, "world": 2, "residuals": {"a": torch.ones(2)}}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (GOOD | {"rank": 1}, r"rank 0 of 2: expected the residuals of this rank, .*rank 1 of .*redivide"),
        (GOOD | {"world": 3}, r"rank 0 of 2: expected .* rank 0 of 3; load .*, or pass all .* to redivide"),
        (GOOD | {"residuals": {"a": torch.ones(3)}}, r"expected 2 elements in the residual 'a', got 3"),
        (
            GOOD | {"residuals": {"b": torch.ones(9), "a": torch.ones(1)}},
            r"expected 2 elements in the residual 'a', got 1",
        ),
        (GOOD | {"residuals": {"a": torch.ones(2, 1)}}, r"for residuals\.a in .* of shape \(2, 1\) on"),
        (GOOD | {"residuals": {"a": torch.ones(2).double()}}, r"for residuals\.a in .*, got a .*float64"),
        (GOOD | {"residuals": {"a": [1.0, 2.0]}}, r"for residuals\.a in a .*, got \[1\.0, 2\.0\]; load"),
        (GOOD | {"residuals": None}, r"named fields for residuals in a state of residuals, got None"),
        (GOOD | {"rank": "0"}, r"a whole number of at least 0 for rank in .*, got '0'"),
        ({"rank": 0, "world": 2}, r"a value for residuals in a state of residuals, got nothing"),
        (None, r"named fields for a state of residuals, got None; load the state that state_dict"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(state: Any, reason: str) -> None:
    residuals = filled(0, 2, a=[8.0, 9.0], c=[1.0])
    with pytest.raises(StateError, match=reason):
        residuals.load_state_dict(state)
    assert contents(residuals) == {"a": [8.0, 9.0], "c": [1.0]}


def test_residuals_are_not_dropped_without_a_word() -> None:
    residuals = Residuals(Plan(), 0, 1)
    with pytest.raises(StateError, match=r"without residuals, .* got residuals of a, b; use a plan"):
        residuals.load_state_dict(filled(b=[1.0], a=[2.0]).state_dict())


# Another world


@given(
    old=st.integers(1, 9),
    new=st.integers(1, 9),
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
)
def test_another_world_keeps_the_sum(old: int, new: int, values: list[float]) -> None:
    states = [
        filled(rank, old, a=[(rank + 1) * value for value in values], b=[1.0]).state_dict()
        for rank in range(old)
    ]
    exact = sum(state["residuals"]["a"].double() for state in states)
    divided = redivide(states[::-1], new)
    assert [(state["rank"], state["world"]) for state in divided] == [(rank, new) for rank in range(new)]
    total = sum(state["residuals"]["a"].double() for state in divided)
    assert isinstance(exact, torch.Tensor)
    assert isinstance(total, torch.Tensor)
    assert ((total - exact).abs() <= exact.abs() * 2.0**-24 + 1e-37).all()
    assert sum(state["residuals"]["b"].item() for state in divided) == pytest.approx(old, rel=1e-6)
    for rank, state in enumerate(divided):
        Residuals(KEEPING, rank, new).load_state_dict(state)


def test_the_same_world_gets_its_own_residuals_back() -> None:
    states = [filled(rank, 3, a=[0.1 * rank, math.pi]).state_dict() for rank in range(3)]
    for before, after in zip(states, redivide([states[1], states[2], states[0]], 3), strict=True):
        assert before["rank"] == after["rank"]
        assert torch.equal(before["residuals"]["a"], after["residuals"]["a"])


def test_new_states_share_no_memory() -> None:
    one, two = redivide([filled(a=[4.0]).state_dict()], 2)
    one["residuals"]["a"].fill_(0.0)
    assert two["residuals"]["a"].tolist() == [2.0]


def test_a_key_that_a_rank_lacks_counts_as_zero() -> None:
    (all_in_one,) = redivide([filled(0, 2, a=[1.0]).state_dict(), filled(1, 2, b=[2.0]).state_dict()], 1)
    assert {key: tensor.item() for key, tensor in all_in_one["residuals"].items()} == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize(
    ("states", "world", "reason"),
    [
        ([filled(0, 2).state_dict()], 1, r"one state for each rank of one run, got the ranks \[0\] and"),
        ([filled(0, 2).state_dict()] * 2, 1, r"got the ranks \[0, 0\]"),
        ([filled(0, 2).state_dict(), filled(1, 3).state_dict()], 1, r"world sizes \[2, 3\]"),
        ([], 1, r"got the ranks \[\] and the world sizes \[\]"),
        ([filled().state_dict()], 0, r"expected a whole number of at least 1 for world, got 0"),
        (
            [filled(0, 2, a=[1.0]).state_dict(), filled(1, 2, a=[1.0, 2.0]).state_dict()],
            1,
            "expected 1 elements",
        ),
        ([{"rank": 0}], 1, r"a value for world in a state of residuals, got nothing"),
    ],
)
def test_states_that_are_no_world_are_refused(
    states: list[Mapping[str, Any]], world: int, reason: str
) -> None:
    with pytest.raises(StateError, match=reason):
        redivide(states, world)


# Training with residuals


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _decoded(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    codec.decode(codec.encode(x), out)
    return out


def _by_hand(
    model: nn.Module, batch_loss: BatchLoss, plan: Plan, steps: int, pipeline: int = 1, kept: bool = True
) -> torch.Tensor:
    """Train two ranks over a star, with residuals, in one process; return the weights once drained.

    Rank 1 sends what it has and keeps what is lost; rank 0 adds, publishes, and keeps what that loses.
    """
    weights = list(model.parameters())
    counts = [weight.numel() for weight in weights]
    residuals = [torch.zeros(sum(counts)) for _ in range(2)]
    averages: list[torch.Tensor] = []

    def apply(average: torch.Tensor) -> None:
        with torch.no_grad():
            for weight, part in zip(weights, torch.split(average, counts), strict=True):
                weight.copy_(weight - LR * part.view_as(weight))

    def gradient(rank: int, step: int) -> torch.Tensor:
        loss = batch_loss(model, step, slice(rank, rank + 1))()
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, weights)])

    for t in range(steps):
        if t >= pipeline:
            apply(averages[t - pipeline])
        root, leaf = (gradient(rank, t) + kept * residuals[rank] for rank in (0, 1))
        average = torch.empty_like(root)
        for bucket in cut(counts, plan.bucket_nbytes):
            part = slice(bucket.start, bucket.stop)
            arrived = _decoded(plan.codec, leaf[part])
            total = root[part] + arrived
            published = _decoded(plan.codec, total)
            residuals[1][part] = leaf[part] - arrived
            residuals[0][part] = total - published
            average[part] = published / 2
        averages.append(average)
    for average in averages[max(0, steps - pipeline) :]:
        apply(average)
    return _flat(model)


def _method(name: str, model: nn.Module, exchange: Exchange) -> DSync | PipeSGD:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    if name == "DSync":
        return DSync(model, optimizer, exchange.plan, group=exchange.link)
    return pipe_sgd(model, optimizer, exchange, pipeline=int(name[-1]), correction="none")


def _train(method: WorkerMethod, batch_loss: BatchLoss, steps: range) -> None:
    rank = method.exchange.link.rank
    for t in steps:
        method.step(batch_loss(method.model, t, slice(rank, rank + 1)))
    method.drain()


EACH_METHOD = pytest.mark.parametrize("name", ["DSync", "PipeSGD 1", "PipeSGD 2", "PipeSGD 3"])


@EACH_METHOD
@pytest.mark.parametrize("bucket_nbytes", [None, 160, 4])
@pytest.mark.parametrize("spec", ["topk:0.2", "quantize:4"])
def test_training_adds_each_step_what_the_step_before_has_lost(
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
    name: str,
    bucket_nbytes: int | None,
    spec: str,
) -> None:
    plan = Plan(parse(spec), "star", bucket_nbytes=bucket_nbytes)
    pipeline = 1 if name == "DSync" else int(name[-1])

    def body(exchange: Exchange) -> torch.Tensor:
        with _method(name, make_model(), exchange) as method:
            _train(method, batch_loss, range(8))
            return _flat(method.model)

    wanted = _by_hand(make_model(), batch_loss, plan, 8, pipeline)
    for weights in run_exchanges(2, body, plan):
        assert torch.equal(weights, wanted)
    assert not torch.equal(wanted, _by_hand(make_model(), batch_loss, plan, 8, pipeline, kept=False))


@EACH_METHOD
def test_a_plan_may_do_without(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss, name: str
) -> None:
    plan = Plan(parse("topk:0.2"), "star", residual=False)

    def body(exchange: Exchange) -> tuple[torch.Tensor, int]:
        with _method(name, make_model(), exchange) as method:
            _train(method, batch_loss, range(6))
            return _flat(method.model), len(method.residuals.state_dict()["residuals"])

    pipeline = 1 if name == "DSync" else int(name[-1])
    wanted = _by_hand(make_model(), batch_loss, plan, 6, pipeline, kept=False)
    for weights, kept in run_exchanges(2, body, plan):
        assert torch.equal(weights, wanted)
        assert kept == 0


@pytest.mark.parametrize("name", ["DSync", "PipeSGD 1", "PipeSGD 2"])
@pytest.mark.parametrize("bucket_nbytes", [None, 160])
def test_training_goes_on_from_a_state_bit_for_bit(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss, name: str, bucket_nbytes: int | None
) -> None:
    plan = Plan(parse("topk:0.2"), bucket_nbytes=bucket_nbytes)

    def run(exchange: Exchange, *, interrupted: bool, loaded: bool) -> torch.Tensor:
        model = make_model()
        method = _method(name, model, exchange)
        _train(method, batch_loss, range(4))
        if interrupted:
            method.close()
            state = method.residuals.state_dict()
            method = _method(name, model, Exchange(exchange.link, plan))
            if loaded:
                method.residuals.load_state_dict(state)
        _train(method, batch_loss, range(4, 8))
        method.close()
        return _flat(model)

    def body(exchange: Exchange) -> tuple[torch.Tensor, ...]:
        links = exchange.link
        return tuple(
            run(Exchange(links, plan), interrupted=interrupted, loaded=loaded)
            for interrupted, loaded in ((False, False), (True, True), (True, False))
        )

    for straight, resumed, forgetful in run_exchanges(3, body, plan):
        assert torch.equal(resumed, straight)
        assert not torch.equal(forgetful, straight)


@EACH_METHOD
def test_a_state_does_not_depend_on_the_buckets(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss, name: str
) -> None:
    plan = Plan(parse("topk:0.2"), bucket_nbytes=160)

    def body(exchange: Exchange) -> None:
        with _method(name, make_model(), exchange) as method:
            _train(method, batch_loss, range(2))
            state = method.residuals.state_dict()
        assert state["residuals"]["gradient"].any()
        whole = Exchange(exchange.link, Plan(parse("topk:0.2")))
        with _method(name, method.model, whole) as method:
            method.residuals.load_state_dict(state)
            assert torch.equal(of(method.residuals, "gradient", 58), state["residuals"]["gradient"])
            _train(method, batch_loss, range(2, 3))

    run_exchanges(2, body, plan)


def test_a_state_of_another_model_is_refused(make_model: MakeModel, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        small, large = (_method("DSync", model, exchange) for model in models)
        with pytest.raises(StateError, match="expected 8 elements in the residual 'gradient', got 58"):
            small.residuals.load_state_dict(large.residuals.state_dict())

    models = nn.Linear(3, 2), make_model()
    run_exchanges(1, body, KEEPING)


BLOCKS = re.findall(r"```python\n(.*?)```", (DOCS / "residual.md").read_text(encoding="utf-8"), re.DOTALL)
PRINTED = ("", "tensor([0., 1., 2., 3., 4., 5., 6., 7.])", "tensor(2.)")


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_the_python_of_the_page_does_what_it_says(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"block {number} of docs/residual.md", "exec"), {})
    assert capsys.readouterr().out.strip() == PRINTED[number]
    assert len(BLOCKS) == len(PRINTED)
