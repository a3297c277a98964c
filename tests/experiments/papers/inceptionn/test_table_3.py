from __future__ import annotations

import pytest
import torch

from gradwire.codecs import parse
from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.inceptionn.table_3 import CLASSES, EXHIBIT, EXPONENTS, Options, shares


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_classes_are_those_of_the_codec(exponent: int) -> None:
    values = torch.randn(8 * 4096, generator=torch.Generator().manual_seed(1)) * 0.05
    values[:3] = torch.tensor([1.0, -5.0, 0.0])
    found = shares(values, exponent)
    assert sum(found) == pytest.approx(1)
    bits = sum(share * each for share, each in zip(found, CLASSES, strict=True)) * values.numel()
    assert parse(f"inceptionn:2^-{exponent}").encode(values).numel() == round(bits / 8)


def row(model: str, at_10: float, at_6: float, whole: float = 0.0) -> dict[str, object]:
    classes = [[share, 1 - share - whole, 0.0, whole] for share in (at_10, at_6)]
    of = {"network": model, "data": "digits", "accuracy": 0.95}
    return {**of, "classes_10": [classes[0]], "classes_6": [classes[1]]}


def test_verdicts_follow_from_the_shares() -> None:
    good, explained, failed = Verdict.REPRODUCED, Verdict.EXPLAINED, Verdict.NOT_REPRODUCED
    for rows, wanted in (
        ([row("cnn", 0.8, 0.95), row("hdc", 0.9, 0.99)], [good, good, good]),
        ([row("cnn", 0.6, 0.95), row("hdc", 0.9, 0.99)], [explained, good, good]),
        ([row("cnn", 0.4, 0.85), row("hdc", 0.9, 0.99)], [failed, failed, good]),
        ([row("cnn", 0.8, 0.95, 0.01)], [good, good, failed]),
    ):
        assert [claim.verdict for claim in EXHIBIT.claims(rows * 3)] == wanted
    dead = [row("cnn", 0.8, 0.95) | {"accuracy": 0.2}] * 3
    assert {claim.verdict for claim in EXHIBIT.claims(dead)} == {Verdict.DID_NOT_LEARN}


def test_gradients_of_a_training_are_sorted() -> None:
    (found,) = perform(EXHIBIT.experiment, Options(("CNN",), (1,), 14, 7), quiet=True)
    assert len(found["classes_8"]) == 2
    assert all(sum(each) == pytest.approx(1) for each in found["classes_8"])
