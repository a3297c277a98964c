from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.inceptionn import full_size
from gradwire_lab.experiments.papers.inceptionn.table_3 import (
    CLASSES,
    EXHIBIT,
    EXPONENTS,
    InceptionnTable3Options,
    measure,
    ratio,
    shares,
)


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


def large(network: str, at_10: float, at_6: float, losses: list[float]) -> dict[str, object]:
    classes = [[[share, 1 - share, 0.0, 0.0]] for share in (at_10, at_6)]
    of = {"network": network, "data": "imagenet", "seed": 1, "losses": losses}
    return {**of, "classes_10": classes[0], "classes_6": classes[1]}


SMALL = [row("cnn", 0.8, 0.95), row("hdc", 0.9, 0.99)] * 3
LOSSES = [6.9, 6.8]


def test_verdicts_follow_from_the_shares() -> None:
    good, failed = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED
    for rows, wanted in (
        ([row("cnn", 0.8, 0.95), row("hdc", 0.9, 0.99)], [good, good, good]),
        ([row("cnn", 0.6, 0.95), row("hdc", 0.9, 0.99)], [failed, good, good]),
        ([row("cnn", 0.4, 0.85), row("hdc", 0.9, 0.99)], [failed, failed, good]),
        ([row("cnn", 0.8, 0.95, 0.01)], [good, good, failed]),
    ):
        assert [claim.verdict for claim in EXHIBIT.claims(rows * 3)][:3] == wanted
    dead = [row("cnn", 0.8, 0.95) | {"accuracy": 0.2}] * 3
    assert {claim.verdict for claim in EXHIBIT.claims(dead)[:3]} == {Verdict.DID_NOT_LEARN}


def test_a_ratio_is_that_of_the_codec() -> None:
    values = torch.randn(8 * 4096, generator=torch.Generator().manual_seed(1)) * 0.01
    payload = parse("inceptionn:2^-10").encode(values)
    assert ratio(shares(values, 10)) == pytest.approx(values.nbytes / payload.numel(), rel=1e-6)


def test_first_steps_of_networks_in_full_size_are_too_short_at_best() -> None:
    claims = EXHIBIT.claims([*SMALL, large("AlexNet", 0.94, 0.99, LOSSES)])
    alexnet = {claim.text: claim for claim in claims if claim.system == "(AlexNet)"}
    assert [*alexnet] == [
        "values of 2 bits at 2^-10",
        "values of 2 bits at 2^-6",
        "values of 34 bits, in any gradient",
        "ratio at 2^-10",
        "ratio at 2^-6",
    ]
    assert alexnet["ratio at 2^-10"].mean == pytest.approx(32 / (0.94 * 2 + 0.06 * 10))
    kept = alexnet.pop("ratio at 2^-10")
    assert kept.verdict is Verdict.NOT_REPRODUCED, "12.9 is more than published"
    assert {claim.verdict for claim in alexnet.values()} == {Verdict.TOO_SHORT}
    (behind,) = kept.rests_on
    assert behind.in_words() == "AlexNet, the first 2 of 320,000 steps, losses 6.90 to 6.80"


def test_gradients_of_a_training_that_broke_count_for_nothing() -> None:
    claims = EXHIBIT.claims([*SMALL, large("VGG-16", 1.0, 1.0, [6.9, math.nan])])
    assert {claim.verdict for claim in claims if claim.system == "(VGG-16)"} == {Verdict.DID_NOT_LEARN}


def test_networks_in_full_size_that_were_not_trained_are_rows_with_the_reason() -> None:
    rows: list[dict[str, object]] = [
        *SMALL,
        {"network": "AlexNet", "data": "imagenet", "missing": "no images."},
    ]
    for system, reason in (("(AlexNet)", "no images."), ("(ResNet-50)", "run --full.")):
        found = [claim for claim in EXHIBIT.claims(rows) if claim.system == system]
        assert {claim.verdict for claim in found} == {Verdict.NOT_RUN}
        assert len(found) == 5
        assert all(claim.explained.endswith(reason) for claim in found)


def test_gradients_of_a_training_are_sorted() -> None:
    options = InceptionnTable3Options(("CNN",), (1,), 14, (), 0, 7)
    found = measure(options, *EXHIBIT.experiment.cells(options))
    assert len(found["classes_8"]) == 2
    assert all(sum(each) == pytest.approx(1) for each in found["classes_8"])


def test_gradients_in_full_size_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(name: str, steps: int, batch: int, seed: int, watch: Any) -> list[float]:
        assert (name, steps, batch, seed) == ("VGG-16", 9, 5, 1)
        for step in range(steps):
            watch(step, torch.full((10,), 2.0**-7))
        return [7.0] * steps

    monkeypatch.setattr(full_size, "train", train)
    monkeypatch.setattr(full_size, "missing", lambda: "")
    options = InceptionnTable3Options((), (), 0, (("VGG-16", 5),), 9, 4)
    (cell,) = EXHIBIT.experiment.cells(options)
    found = measure(options, cell)
    assert found["classes_10"] == [[0, 1, 0, 0]] * 3
    assert found["classes_6"] == [[1, 0, 0, 0]] * 3
    monkeypatch.setattr(full_size, "missing", lambda: "no images.")
    assert measure(options, cell) == {"missing": "no images."}
