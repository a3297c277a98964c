"""How a method trains a task: blocks, the loss that ends it, and what methods are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.codecs import parse
from gradwire.launch.rendezvous import joined_group
from gradwire.plan import Plan
from gradwire_lab.experiments import methods as runs
from gradwire_lab.experiments.methods import COUNTED, PATIENCE, ComparedMethod, in_words, measure, train
from gradwire_lab.experiments.speeds import ATTACHED, EQUAL, HOOK
from gradwire_lab.experiments.tasks import TrainingTask
from support.lone_rank import Alone

BLOCK, BLOCKS = 5, 6


class Falling(ComparedMethod):
    """Its weight, which is the loss, is halved in every block."""

    def __init__(self) -> None:
        linear = torch.nn.Linear(1, 1, bias=False)
        self.model, self._weight = linear, linear.weight
        torch.nn.init.ones_(linear.weight)
        self.steps, self.closed = 0, False

    def train(self, steps: int) -> None:
        self.steps += steps
        self.local_s += 0.5
        with torch.no_grad():
            self._weight.mul_(0.5)

    def close(self) -> None:
        self.closed = True


class Weighed(TrainingTask):
    """A task whose held-out loss is the weight."""

    def judged(self, model: torch.nn.Module) -> tuple[float, float]:
        loss = next(model.parameters()).item()
        return loss, 1 - loss


@pytest.fixture
def group() -> Iterator[None]:
    with joined_group(HashStore(), 0, 1, 20.0):
        yield


def task() -> TrainingTask:
    nothing = (torch.zeros(1), torch.zeros(1))
    model = torch.nn.Linear(1, 1)
    return Weighed(
        "falling", model, lambda _: torch.optim.SGD(model.parameters()), iter(()), nothing, BLOCK, BLOCKS
    )


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("target", "blocks"),
    [
        (None, BLOCKS),  # plain DDP
        (0.5, COUNTED),  # reached in the first block: the others make the median
        (2**-7, 7),
        (0.0, round(PATIENCE * BLOCKS)),
        (math.inf, COUNTED),  # not judged
    ],
)
def test_it_ends_at_the_loss_or_when_patience_does(target: float | None, blocks: int) -> None:
    method = Falling()
    found = train(Alone(), method, task(), target)  # type: ignore[arg-type]
    assert method.steps == BLOCK * blocks
    assert method.closed
    assert [(steps, loss) for steps, _, loss in found["curve"]] == [
        (BLOCK * number, 0.5**number) for number in range(1, blocks + 1)
    ]
    seconds = [spent_s for _, spent_s, _ in found["curve"]]
    assert seconds == sorted(seconds)
    assert len(found["blocks"]) == blocks
    assert found["accuracies"] == [1 - loss for _, _, loss in found["curve"]]
    assert found["local_s"] == pytest.approx(0.5 / BLOCK)


@pytest.mark.parametrize(
    ("methods", "given", "targets"),
    [
        (["alone", "DDP", "bf16 hook", "DDP again"], None, [math.inf, None, 3.5 * EQUAL, math.inf]),
        (["fp8 on DDP", "DDP again"], 3.0, [3.0, math.inf]),  # DDP is in the record already
    ],
)
def test_all_methods_but_two_are_judged_by_ddp(
    monkeypatch: pytest.MonkeyPatch, methods: Sequence[str], given: float | None, targets: list[float | None]
) -> None:
    asked: list[float | None] = []

    def trained(_ranks: object, _method: object, _task: TrainingTask, target: float | None) -> dict[str, Any]:
        asked.append(target)
        return {"step_s": 1.0, "curve": [(1, 1.0, 5.0), (2, 2.0, 2.0)], "blocks": [], "local_s": 0.0}

    monkeypatch.setattr(runs, "train", trained)
    monkeypatch.setattr(runs, "TASKS", {"falling": lambda *_: task()})
    monkeypatch.setattr(runs, "methods", lambda _plans: dict.fromkeys(methods, lambda _task: Falling()))
    ranks = Alone()
    cells = [{"task": "falling", "seed": 1, "method": method} for method in methods]
    measure(ranks, cells, target=given)  # type: ignore[arg-type]
    assert asked == targets
    assert [(row["method"], row["plan"]) for row in ranks.rows] == [(method, "") for method in methods]


def test_a_planned_method_says_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {name: Plan(parse("fp8"), "ring", 1 << 18, pipeline) for name, pipeline in runs.PLANNED.items()}
    monkeypatch.setattr(runs, "planned", lambda _ranks, _task: plans)
    monkeypatch.setattr(runs, "methods", lambda given: dict.fromkeys(given, lambda _task: Falling()))
    monkeypatch.setattr(runs, "train", lambda *_: {"curve": []})
    monkeypatch.setattr(runs, "TASKS", {"falling": lambda *_: task()})
    ranks = Alone()
    measure(ranks, [{"task": "falling", "seed": 0, "method": name} for name in runs.PLANNED])  # type: ignore[arg-type]
    assert [row["plan"] for row in ranks.rows] == ["fp8 ring 256K"] * 2


def test_a_method_that_chooses_itself_says_what_it_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    class Chosen(Falling):
        plan = Plan(parse("bf16"), "tree", 1 << 18)

    monkeypatch.setattr(runs, "methods", lambda _plans: {ATTACHED: lambda _task: Chosen()})
    monkeypatch.setattr(runs, "train", lambda *_: {"curve": []})
    monkeypatch.setattr(runs, "TASKS", {"falling": lambda *_: task()})
    ranks = Alone()
    measure(ranks, [{"task": "falling", "seed": 0, "method": ATTACHED}])  # type: ignore[arg-type]
    assert [row["plan"] for row in ranks.rows] == ["bf16 tree 256K"]


def test_a_plan_in_words_has_no_segment_where_torch_cuts() -> None:
    assert in_words(Plan(parse("quantize:8"), "ring", 1 << 20)) == "quantize:8 ring 1024K"
    assert in_words(Plan(parse("identity"), "backend")) == "identity backend"


@pytest.mark.usefixtures("group")
def test_every_method_is_made_and_pipelines_are_those_of_their_names() -> None:
    plans = {name: Plan(parse("fp8"), pipeline=pipeline) for name, pipeline in runs.PLANNED.items()}
    known = runs.methods(plans)
    made = {name: getattr(start, "func", start).__name__ for name, start in known.items()}
    assert {name for name in made if made[name] == "Pipelined"} == {
        name for name in made if "PipeSGD" in name
    }
    assert {name for name in made if made[name] in ("attached", "chosen_in_the_run")} == {
        name for name in made if name.endswith("on DDP") or name == ATTACHED
    }


def test_a_task_begins_from_the_seed_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def made(_rank: int, _world: int, _files: object, seed: int) -> TrainingTask:
        begun.append(seed)
        return task()

    monkeypatch.setattr(runs, "train", lambda *_: {"curve": [(1, 1.0, 2.0)]})
    monkeypatch.setattr(runs, "TASKS", {"falling": made})
    monkeypatch.setattr(runs, "methods", lambda _plans: dict.fromkeys(["DDP", HOOK], lambda _: Falling()))
    cells = [{"task": "falling", "seed": 2, "method": method} for method in ("DDP", HOOK)]
    measure(Alone(), cells)  # type: ignore[arg-type]
    assert begun == [2, 2]
