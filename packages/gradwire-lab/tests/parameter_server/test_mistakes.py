"""What users get wrong at servers and workers; the core's tests of its methods are here for them, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import gradwire
from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.servers import STAR
from sync import test_method as core
from sync.test_method import Door, new_model, refuses, sgd

ALIKE: dict[str, tuple[Any, str]] = {
    "ledger": ("x.jsonl", "expected a gradwire.Ledger or None for ledger, got 'x.jsonl'"),
    "weight_codec": (3, "weight_codec: expected a codec, its spec or None, got 3"),
}
DOORS = {
    "Server": Door(
        lambda model, optimizer, plan=STAR, **more: Server(
            model, optimizer, plan, group=gradwire.loopback(2)[0], **more
        ),
        options={**ALIKE, "plan": (7, "expected a Plan, a codec, .* for plan, got 7")},
    ),
    "StaleServer": Door(
        lambda model, optimizer, plan=STAR, staleness=1, **more: StaleServer(
            model, optimizer, plan, staleness, group=gradwire.loopback(2)[0], **more
        ),
        options={**ALIKE, "staleness": (1.5, r"expected a staleness as a whole number .*, got 1\.5")},
    ),
    "Worker": Door(
        lambda model, _, plan=STAR, **more: Worker(model, plan, group=gradwire.loopback(2)[1], **more),
        options=ALIKE,
    ),
    "StaleWorker": Door(
        lambda model, _, plan=STAR, **more: StaleWorker(
            model, plan, 1, group=gradwire.loopback(2)[1], **more
        ),
        options=ALIKE,
    ),
}
OPTIONS = {f"{name}-{option}": (door, option) for name, door in DOORS.items() for option in door.options}
SERVERS, WORKERS = ("Server", "StaleServer"), ("Worker", "StaleWorker")


def over(names: Sequence[str] = tuple(DOORS)) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("door", [DOORS[name] for name in names], ids=names)


test_a_wrong_model_is_refused = over()(core.test_a_wrong_model_is_refused)
test_a_ddp_model_is_refused_wherever_it_is = over()(core.test_a_ddp_model_is_refused_wherever_it_is)
test_a_wrong_optimizer_is_refused = over(SERVERS)(core.test_a_wrong_optimizer_is_refused)
test_a_loss_instead_of_a_function_is_refused = over(WORKERS)(
    core.test_a_loss_instead_of_a_function_is_refused
)
test_a_wrong_option_is_refused = pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)(
    core.test_a_wrong_option_is_refused
)


@over()
def test_weights_may_be_sent_by_a_spec(door: Door) -> None:
    model = new_model()
    made = door.make(model, sgd(model), weight_codec="bf16")
    assert str(made.weight_codec) == "bf16"


@over(SERVERS)
@pytest.mark.parametrize("steps", ["x", 1.5, -1, None])
def test_what_is_no_number_of_steps_is_refused(door: Door, steps: Any) -> None:
    model = new_model()
    with refuses(SpecError, "serve: expected a whole number of at least 0 steps, got"):
        door.make(model, sgd(model)).serve(steps)


@over()
def test_a_sharded_plan_is_refused(door: Door) -> None:
    plan, model = Plan(parse("quantize:8"), exchange="sharded"), new_model()
    with refuses(SpecError, "^a parameter server: expected a plan .* with gradwire.sharded.Sharded$"):
        door.make(model, sgd(model), plan=plan)
