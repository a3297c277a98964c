"""The tasks: equal weights on all ranks, every rank's own batches, a loss that training lowers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradwire.errors import DataError
from gradwire_lab.experiments.tasks import (
    CONTEXT,
    HELD_OUT_CONTEXTS,
    LEAST_TEXT_NBYTES,
    TASKS,
    Files,
    TrainingTask,
    goal_of_bytes,
    text_batches,
)

NBYTES = {"mnist-mlp": 2.6e6, "cifar-cnn": 4.4e6, "wide-mlp": 74e6, "gpt": 43e6}
"""What docs/training_speed.md says; scikit-learn's digits are smaller images than MNIST's."""


def made(name: str, rank: int) -> TrainingTask:
    return TASKS[name](rank, 4, Files())


@pytest.mark.parametrize("name", TASKS)
def test_ranks_begin_with_equal_weights_and_have_batches_of_their_own(name: str) -> None:
    first, second, again = made(name, 0), made(name, 1), made(name, 0)
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    batches = [next(task.batches) for task in (first, second, again)]
    assert not torch.equal(batches[0][0], batches[1][0])
    assert torch.equal(batches[0][0], batches[2][0])
    assert torch.equal(first.held_out[0], second.held_out[0])
    nbytes = 4 * sum(each.numel() for each in first.model.parameters())
    assert 0.4 * NBYTES[name] < nbytes < 1.1 * NBYTES[name]
    assert first.data == ("Python's reference" if name == "gpt" else "digits")
    assert first.goal is not None, "every task says what counts as learned"
    assert 0 < first.goal.chance < first.goal.known < 1


@pytest.mark.parametrize("name", ["mnist-mlp", "cifar-cnn", "gpt"])
def test_a_seed_has_weights_and_batches_of_its_own_and_the_same_judge(name: str) -> None:
    first, second = made(name, 0), TASKS[name](0, 4, Files(), 1)
    assert not torch.equal(next(first.batches)[0], next(second.batches)[0])
    assert not all(map(torch.equal, first.model.parameters(), second.model.parameters()))
    assert torch.equal(first.held_out[0], second.held_out[0])
    assert first.goal == second.goal


def test_the_goal_of_bytes_is_that_of_counted_pairs(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"ababac" * 1000)
    goal = goal_of_bytes(text)
    assert (round(goal.chance, 2), round(goal.known, 2)) == (0.5, 0.83)  # 'a', and 'b' after 'a'


@pytest.mark.parametrize(("half", "least"), [(None, LEAST_TEXT_NBYTES), (0, 2 * LEAST_TEXT_NBYTES)])
def test_a_text_is_long_enough_for_a_held_out_context_or_refused(
    tmp_path: Path, half: int | None, least: int
) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"a" * least)
    training, (held_out, _) = text_batches(text, 1, 0, half)
    assert held_out.shape == (HELD_OUT_CONTEXTS, CONTEXT)
    assert next(training)[0].shape == (1, CONTEXT)
    for short in (least - 1, 0):
        text.write_bytes(b"a" * short)
        with pytest.raises(DataError, match=rf"expected at least {least} bytes in .*text, got {short};"):
            text_batches(text, 1, 0, half)


def test_the_wide_layers_begin_with_the_weights_of_he() -> None:
    first, *_ = made("wide-mlp", 0).model.parameters()
    assert float(first.detach().std()) == pytest.approx((2 / first.shape[1]) ** 0.5, rel=0.02)


def test_a_task_is_judged_by_loss_and_accuracy() -> None:
    task = made("mnist-mlp", 0)
    loss, accuracy = task.judged(task.model)
    assert loss == task.held_out_loss(task.model)
    logits = task.model.eval()(task.held_out[0])
    assert accuracy == pytest.approx(float((logits.argmax(1) == task.held_out[1]).float().mean()))


@pytest.mark.parametrize("name", TASKS)
def test_model_and_batches_go_to_a_device(name: str) -> None:
    task = made(name, 0).on("meta")
    task.loss(task.model, next(task.batches)).backward()  # type: ignore[no-untyped-call]
    tensors = [*next(task.batches), *task.held_out, *(each.grad for each in task.model.parameters())]
    assert all(each is not None and each.device.type == "meta" for each in tensors)


@pytest.mark.parametrize("name", ["mnist-mlp", "cifar-cnn"])
def test_steps_lower_the_held_out_loss(name: str) -> None:
    task = made(name, 0)
    optimizer = task.optimizer(task.model)
    before = task.held_out_loss(task.model)
    for _ in range(task.block):
        optimizer.zero_grad()
        task.loss(task.model, next(task.batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert task.held_out_loss(task.model) < 0.8 * before
    assert task.model.training


def test_the_gpt_predicts_the_byte_that_follows_and_sees_no_later_one() -> None:
    task = made("gpt", 0)
    text, following = next(task.batches)
    assert text.shape == following.shape == (1, CONTEXT)
    assert torch.equal(text[0, 1:], following[0, :-1])
    assert task.held_out[0].shape == (HELD_OUT_CONTEXTS, CONTEXT)
    changed = text.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 256
    task.model.eval()
    with torch.no_grad():
        first, second = task.model(text), task.model(changed)
    assert torch.allclose(first[:, :-1], second[:, :-1], atol=1e-5)
    assert not torch.allclose(first[:, -1], second[:, -1], atol=1e-5)
