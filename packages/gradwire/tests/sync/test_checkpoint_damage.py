"""A pipeline's state that was damaged, or altered, is an error: never another model."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire.codecs import parse
from gradwire.errors import StateError
from gradwire.links import loopback
from gradwire.plan import Plan
from gradwire.sync.checkpoint import IN_FLIGHT

TEXT, OWN, RESIDUAL = (f"gradwire/rank0/{name}" for name in ("pipe", "own", "residual/gradient"))
State = dict[str, Any]


def make_pipe() -> gradwire.PipeSGD:
    torch.manual_seed(3)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    (link,) = loopback(1)
    return gradwire.PipeSGD(model, optimizer, Plan(parse("topk:0.25"), pipeline=2), group=link)


@pytest.fixture
def state() -> State:
    with make_pipe() as pipe:
        for step in range(5):
            x = torch.full((2, 5), float(step))
            pipe.step(lambda x=x: pipe.model(x).square().mean())  # type: ignore[misc]
        return pipe.state_dict()


def refusals(states: list[State]) -> list[str]:
    found = []
    with make_pipe() as pipe:
        before = repr(pipe.state_dict())
        for state in states:
            with pytest.raises(StateError) as caught:
                pipe.load_state_dict(state)
            found.append(str(caught.value))
        assert repr(pipe.state_dict()) == before, "what is refused changes nothing"
    return found


def as_before_checksums(state: State, **changes: object) -> State:
    """Return a state as an earlier gradwire wrote it, with changes."""
    text = json.loads(state[TEXT])
    for later in ("crc32c", "sums", "absent", "own_absent"):
        del text[later]
    return {**state, TEXT: json.dumps({**text, "version": 2, **changes})}


def flipped(tensor: torch.Tensor, bit: int) -> torch.Tensor:
    found = tensor.clone()
    found.view(-1).view(torch.uint8)[bit // 8] ^= 1 << bit % 8
    return found


@pytest.mark.parametrize("key", [IN_FLIGHT, OWN, RESIDUAL])
def test_no_flipped_bit_of_a_tensor_is_loaded(key: str, state: State) -> None:
    damaged = [{**state, key: flipped(state[key], bit)} for bit in (0, 7, 30, 31, 200)]
    assert all(f"{key} is damaged: its checksum" in reason for reason in refusals(damaged))


def test_no_altered_character_of_the_text_is_loaded(state: State) -> None:
    text = state[TEXT]
    others = [
        text[:place] + chr(ord(text[place]) ^ bit) + text[place + 1 :]
        for place in range(0, len(text), 5)
        for bit in (1, 4)
    ]
    refusals([{**state, TEXT: other} for other in others if other.replace(" ", "") != text.replace(" ", "")])


def test_a_tensor_that_is_missing_is_refused(state: State) -> None:
    del state[RESIDUAL]
    assert (
        "a value for gradwire/rank0/residual/gradient in the state of rank 0, got nothing"
        in refusals([state])[0]
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda state: as_before_checksums(state, steps_done=-5),
            "of at least 2 for steps_done in the state of rank 0, got -5",
        ),
        (
            lambda state: as_before_checksums(state, steps_done=1),
            "of at least 2 for steps_done in the state of rank 0, got 1",
        ),
        (
            lambda state: as_before_checksums(state, steps_done="5"),
            "of at least 2 for steps_done in the state of rank 0, got '5'",
        ),
        (lambda state: as_before_checksums(state, in_flight=[[], []]), "expected hyperparameters for each"),
        (lambda state: as_before_checksums(state, in_flight=[[{"lr": 0.1}] * 2] * 2), "parameter groups"),
        (
            lambda state: {**as_before_checksums(state), RESIDUAL: torch.full((18,), math.nan)},
            "got a NaN or an infinity",
        ),
    ],
)
def test_what_no_pipeline_leaves_is_refused_in_states_without_checksums(
    change: Callable[[State], State], reason: str, state: State
) -> None:
    assert reason in refusals([change(state)])[0]


def test_states_without_checksums_still_load(state: State) -> None:
    ends = []
    for each in (state, as_before_checksums(copy.deepcopy(state))):
        with make_pipe() as pipe:
            pipe.load_state_dict(each)
            pipe.drain()
            ends.append(nn.utils.parameters_to_vector(pipe.model.parameters()).detach().clone())
    assert torch.equal(*ends)
