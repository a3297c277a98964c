from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradwire.codecs import parse
from gradwire.experiments.papers.inceptionn.training import data_name, dataset, one_thread, train


def test_training_learns_and_is_repeated_bit_for_bit() -> None:
    images = dataset("digits")
    first = train(images, "cnn", 3, 1, most_steps=8)
    assert first.steps == 8
    assert len(first.accuracies) == 3
    assert first.accuracies[-1] > 0.4
    assert train(images, "cnn", 3, 1, most_steps=8) == first
    assert train(images, "cnn", 3, 2, most_steps=8) != first


def test_gradients_pass_the_codec_and_weights_stay_exact() -> None:
    seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    codec = parse("truncate:24")
    train(
        dataset("digits"),
        "cnn",
        1,
        1,
        of_gradients=codec,
        watch=lambda *each: seen.append(each),
        most_steps=2,
    )
    assert [step for step, _, _ in seen] == [0, 1]
    for _, gradient, sent in seen:
        kept = gradient.view(torch.int32) & -(1 << 24)
        assert torch.equal(sent.view(torch.int32), kept)


def test_weights_that_are_cut_off_learn_less() -> None:
    images = dataset("digits")
    cut = train(images, "cnn", 4, 1, of_weights=parse("truncate:24"))
    assert cut.accuracies[-1] < train(images, "cnn", 4, 1).accuracies[-1] - 0.1


def test_one_thread_ends_with_its_block() -> None:
    before = torch.get_num_threads()
    with one_thread(1):
        drawn = torch.rand(1)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with one_thread(1):
        assert torch.equal(torch.rand(1), drawn)


def test_data_is_mnist_only_where_its_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    assert data_name() == "digits"
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path))
    assert data_name() == "digits"
