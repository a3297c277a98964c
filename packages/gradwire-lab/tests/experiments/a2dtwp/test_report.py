from __future__ import annotations

from gradwire.tables import WIDTH, lines
from gradwire_lab.experiments.a2dtwp.report import table
from support.offloaded_rows import batch, longer, training

ERRORS = [0.8, 0.8, 0.8, 0.5, 0.5, 0.5, 0.5]


def test_the_tables_have_each_policy_the_kernels_and_warnings() -> None:
    trained = [training(policy, ERRORS) for policy in ("fp32", "bf16", "static:8")]
    warned = training("awp", ERRORS, lossy=["all switch alike."])
    timed = [batch(name, 2.0) for name in ("fp32", "bf16", "awp:8", "awp:16", "awp:24", "awp:32")]
    printed = lines(*table([longer(), *trained, warned, *timed, batch("static:8", 1.0)]))
    assert max(map(len, printed)) <= WIDTH
    assert "vgg on cifar10; the error to reach is 51.0 %" in printed
    split = [line.split() for line in printed]
    assert ["static:8", "(oracle)", "8", "50.0", "590", "1000", "50.0", "500", "50.0"] in split
    assert any(words[:1] == ["delta"] for words in split), "it shares a training with bf16"
    assert "vgg, seed 1: all switch alike." in printed
    assert any(words[:1] == ["batch"] for words in split)


def test_without_float32_there_is_no_error_to_reach_and_digits_are_said() -> None:
    printed = lines(*table([training("static:8", ERRORS, images="digits")]))
    assert "vgg on scikit-learn's digits" in printed
