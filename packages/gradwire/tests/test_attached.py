"""The handle of one model, without a model: scales of the loss, shards, and the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from gradwire.attached import Attached
from gradwire.checkpoints import sealed
from gradwire.errors import SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.bucket.observe import NO_CHOOSER
from gradwire.sync.checkpoint import ATTACHED_SHARDS, RankState, pack, redivide
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.replicas.compare import ReplicaWatch
from support.fake_buckets import sync_over
from support.saved_residuals import residuals_in


class FakeScaler:
    """Says its scale, as a ``GradScaler``."""

    scale = 2.0

    def get_scale(self) -> float:
        return self.scale


class Handle:
    """A handle on exchanges of a world of one, and a residual of two values."""

    def __init__(self, watch: ReplicaWatch | None) -> None:
        self.sync: GradientSync = sync_over(Exchange(loopback(1)[0], Plan.of("topk:0.5")))
        self.ends, undo = list[str](), ExitStack()
        undo.callback(self.sync.close)
        undo.callback(self.ends.append, "end")
        self.attached = Attached(self.sync, NO_CHOOSER, undo, watch)
        residual = self.sync.residuals.of("a", 2)
        assert residual is not None
        self.residual = residual.fill_(1.0)


@pytest.fixture(params=["replicas", "shards"])
def handle(request: pytest.FixtureRequest) -> Iterator[Handle]:
    made = Handle(ReplicaWatch() if request.param == "replicas" else None)
    yield made
    made.attached.close()


def test_residuals_follow_a_scaler_from_step_to_step_and_into_a_run_without_one(handle: Handle) -> None:
    attached, scaler = handle.attached, FakeScaler()
    attached.follow(scaler)
    assert handle.residual.tolist() == [1.0, 1.0], "the first scale is their own"
    scaler.scale = 8.0
    handle.sync.begin()
    assert handle.residual.tolist() == [4.0, 4.0]
    with pytest.raises(SpecError, match="residuals already follow the scaler"):
        attached.scale_residuals(2.0)
    state = attached.state_dict()
    with Handle(attached._watch).attached as other:
        other.load_state_dict(state)
        other._sync.begin()
        residual = other._sync.residuals.of("a", 2)
        assert residual is not None
        assert residual.tolist() == [0.5, 0.5]


def test_without_a_scaler_residuals_are_scaled_by_hand(handle: Handle) -> None:
    with pytest.raises(SpecError, match="follow: expected a scaler with get_scale, got a float"):
        handle.attached.follow(2.0)  # type: ignore[arg-type]
    handle.attached.scale_residuals(0.5)
    handle.sync.begin()
    assert handle.residual.tolist() == [0.5, 0.5]


def test_shards_have_nothing_to_compare_and_their_states_are_not_divided_anew() -> None:
    attached = Handle(None).attached
    for call in (attached.check_replicas, attached.check_at_next_step):
        with pytest.raises(SpecError, match="expected replicated weights, got FSDP shards of 1 ranks; comp"):
            call()
    state = attached.state_dict()
    with pytest.raises(StateError, match="got a state of attach_fsdp, whose shards depend on"):
        redivide([state], 2)
    older = sealed({"residuals": {"rank": 0, "world": 1, "residuals": {"0/2": torch.ones(2)}}})
    with pytest.raises(StateError):
        redivide([older], 2)
    attached.load_state_dict(older)
    assert residuals_in(attached.state_dict())["0/2"].tolist() == [1.0, 1.0]
    with pytest.raises(StateError, match="the residuals of rank 0 do not match their checksum"):
        attached.load_state_dict({**older, "residuals": {"rank": 0, "world": 1, "residuals": {}}})
    for wider in (
        pack(RankState(0, 2, 3, ATTACHED_SHARDS)),
        {"residuals": {"rank": 0, "world": 2, "residuals": {}}},
    ):
        with pytest.raises(StateError, match="got residuals of 2 ranks, which FSDP shards"):
            attached.load_state_dict(wider)
    attached.close()


def test_its_end_comes_once(handle: Handle) -> None:
    assert repr(handle.attached).startswith("<Attached, 0 steps, by <Exchange of topk:0.5")
    with handle.attached:
        pass
    handle.attached.close()
    assert handle.ends == ["end"]
    assert repr(handle.attached).startswith("<Attached, closed, by ")
    assert torch.equal(handle.residual, torch.ones(2)), "what was lost can still be saved"
