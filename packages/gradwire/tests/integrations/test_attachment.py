"""What every integration does, with one rank; and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Ledger
from gradwire.errors import AttachError, ExchangeError, SpecError, StateError
from gradwire.integrations.attachment import Attachment, ResidualFolder
from gradwire.sync.ledger.sinks import JsonLines
from support.saved_residuals import residuals_in


def backward(model: nn.Module) -> None:
    model(torch.ones(3, 4)).sum().backward()


def test_a_run_that_compressed_passes_the_check_and_one_that_did_not_fails(
    model: DistributedDataParallel,
) -> None:
    attachment = Attachment("errbound:2^-10")
    attachment.attach(model)
    attachment.check_it_ran(updates=0)
    with pytest.raises(AttachError, match="weights were updated 3 times, but no gradient reached gradwire"):
        attachment.check_it_ran(updates=3)
    backward(model)
    attachment.check_it_ran(updates=3)
    attachment.close()
    attachment.close()
    assert attachment.attached.ledger.summary().total.exchanges == 1
    with pytest.raises(ExchangeError, match="closed"):
        backward(model)


def test_steps_that_a_ledger_counted_before_are_no_proof(model: DistributedDataParallel) -> None:
    ledger = Ledger(0)
    ledger.end_step()
    attachment = Attachment("identity", ledger=ledger)
    attachment.attach(model)
    with pytest.raises(AttachError, match="compression did not run"):
        attachment.check_it_ran(updates=1)
    attachment.close()


def test_attaching_again_gives_the_first_model_up(model: DistributedDataParallel) -> None:
    attachment = Attachment("identity")
    attachment.attach(model)
    second = DistributedDataParallel(model.module)
    attachment.attach(second)
    backward(second)
    assert attachment.attached.ledger.summary().steps == 1
    attachment.close()


def test_a_ledger_is_this_rank_s_own(model: DistributedDataParallel, tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"rank 0: expected a ledger of this rank, got the ledger of rank 3; pass a fun"
    ):
        Attachment(ledger=Ledger(3)).attach(model)
    lines = tmp_path / "steps.jsonl"
    attachment = Attachment("identity", ledger=lambda rank: Ledger(rank, [JsonLines(lines)]))
    attachment.attach(model)
    attachment.attached.ledger.bypassed("a test", "bucket 9", 4)  # no step ends it; close must write it
    attachment.attached.close()  # as the caller of Accelerate's attach_prepared does
    assert "a test" in lines.read_text(encoding="utf-8")
    attachment.close()


def test_a_ledger_of_a_function_is_closed_if_the_model_is_refused(model: DistributedDataParallel) -> None:
    ends: list[str] = []

    class Sink(JsonLines):
        def close(self) -> None:
            super().close()
            ends.append("closed")

    first = Attachment("identity")
    first.attach(model)
    for rank, error in ((0, AttachError), (3, SpecError)):
        ends.clear()
        ledger = Ledger(rank, [Sink(os.devnull)])
        with pytest.raises(error):
            Attachment("identity", ledger=dict.fromkeys(range(4), ledger).__getitem__).attach(model)
        assert ends == ["closed"]
    first.close()


def test_before_training_there_is_nothing_attached() -> None:
    attachment = Attachment()
    with pytest.raises(AttachError, match="is not attached yet"):
        _ = attachment.attached
    attachment.close()


def test_mistakes_are_found_before_anything_starts() -> None:
    with pytest.raises(SpecError, match="unknown codec 'fp17'"):
        Attachment("fp17")
    with pytest.raises(SpecError, match="expected timeout_s above 0"):
        Attachment(timeout_s=0)


def test_refused_residuals_say_how_to_go_on_without(model: DistributedDataParallel) -> None:
    attachment = Attachment("topk:0.5")
    attachment.attach(model)
    state = attachment.state(3)
    attachment.resume(1, lambda _: state, 3)
    strange = {"step": 3, "residuals": {"rank": 1, "world": 2, "residuals": {}}}
    with pytest.raises(StateError, match="rank 0 of 1: expected the residuals of this rank") as caught:
        attachment.resume(1, lambda _: strange, 3)
    assert any("resume_residuals=False" in note for note in caught.value.__notes__)
    attachment.close()


def test_a_checkpoint_without_residuals_says_how_to_go_on_without(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    attachment = Attachment("topk:0.5")
    attachment.attach(model)
    with pytest.raises(StateError, match="of all ranks, got none") as caught:
        attachment.resume_from(ResidualFolder(tmp_path), 3)
    assert any("resume_residuals=False" in note for note in caught.value.__notes__)
    ResidualFolder(tmp_path).write(attachment.state(3), 0, 1)
    attachment.resume_from(ResidualFolder(tmp_path), 3)
    attachment.close()


def test_another_world_s_residuals_come_back_as_their_sum(model: DistributedDataParallel) -> None:
    attachment = Attachment("topk:0.5")
    attachment.attach(model)
    own = [torch.full((8,), float(rank)) for rank in range(3)]
    states = [{"rank": rank, "world": 3, "residuals": {"weight": own[rank]}} for rank in range(3)]
    attachment.resume(3, lambda rank: {"step": 5, "residuals": states[rank]}, 5)
    state = attachment.state(6)
    assert state["step"] == 6
    assert torch.equal(residuals_in(state["residuals"])["weight"], sum(own, torch.zeros(8)))
    attachment.close()


def test_the_plan_is_read_once() -> None:
    plan = gradwire.Plan(gradwire.parse("quantize:8"))
    assert Attachment(plan).plan is plan


def test_a_framework_s_run_may_choose_its_plan(model: DistributedDataParallel) -> None:
    for plan in ("auto", gradwire.Auto(max_lost_norm=0.1)):
        attachment = Attachment(plan)
        assert not attachment.plan.keeps_residual
    attached = attachment.attach(model)
    backward(model)
    assert attached.plan == gradwire.Auto().first_plan
    attachment.close()


def test_what_a_run_has_chosen_is_kept_with_checkpoints_and_may_be_missing(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    attachment = Attachment("auto")
    keeps = [attachment.keeps_state]  # there is no model yet
    attachment.attach(model)
    assert [*keeps, attachment.keeps_state] == [False, True]
    folder = ResidualFolder(tmp_path / "checkpoint")
    empty = [folder.empty]
    attachment.resume_from(folder, 3)  # written before choices were kept
    (tmp_path / "checkpoint").mkdir()
    folder.write(attachment.state(3), 0, 1)
    assert [*empty, folder.empty] == [True, False]
    attachment.resume_from(folder, 3)
    with pytest.raises(StateError, match="of step 4"):
        attachment.resume_from(folder, 4)
    attachment.close()
