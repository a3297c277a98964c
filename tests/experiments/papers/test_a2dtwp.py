from __future__ import annotations

import pytest

from gradwire.experiments.claim import Basis, Verdict
from gradwire.experiments.papers.a2dtwp import EXHIBIT
from support.offloaded_rows import row

FLAT = [0.3, 0.3, 0.3, 0.1, 0.1, 0.1]


def rows(**awp: float) -> list[dict[str, object]]:
    """An alexnet, a VGG, and a resnet with the published profile: 8 % of the time saved, a third to send."""
    faster = {"transfer_s": 0.135, "packing_cpu_s": 0.03, **awp}
    batch_s = faster.pop("batch_s", 1.84)
    return [row("fp32", 2.0, FLAT), row("awp", batch_s, FLAT, **faster)]


def failed(found: list[dict[str, object]]) -> list[tuple[str, str]]:
    claims = EXHIBIT.claims(found)
    return [(each.text, each.system) for each in claims if each.verdict is Verdict.NOT_REPRODUCED]


def test_every_table_and_figure_has_its_claims() -> None:
    claims = EXHIBIT.claims(rows())
    assert failed(rows()) == []
    assert {each.published.place for each in claims if each.published} == {
        "figure 3",
        "figure 4",
        "figure 5",
        "table II",
        "table III",
    }
    # The published profile: 153.93 over 52.27 ms.
    transfer = next(each for each in claims if each.published and each.published.place == "table II")
    assert transfer.published is not None
    assert transfer.published.value == pytest.approx(2.945, abs=1e-3)
    assert transfer.mean == pytest.approx(0.4 / 0.135)
    assert transfer.basis is Basis.CALIBRATED, "its batches and interval follow from the published figure"


@pytest.mark.parametrize(
    ("altered", "text"),
    [
        ({"transfer_s": 0.3}, "VGG: transfer to the device, shorter"),
        ({"compute_s": 0.8}, "VGG: forward and backward, as long as before"),
        ({"packing_cpu_s": 0.4}, "VGG: norms and packing, of a batch"),
    ],
)
def test_altered_data_fails(altered: dict[str, float], text: str) -> None:
    assert failed(rows(**altered)) == [(text, "x86"), (text, "power")]


def test_batches_that_take_as_long_as_before_fail() -> None:
    assert ("VGG: time of as many batches, over float32's", "x86") in failed(rows(batch_s=2.0))


def test_a_training_that_loses_accuracy_fails() -> None:
    worse = [rows()[0], row("awp", 1.5, [0.3] * 6, transfer_s=0.135)]
    assert ("error above float32's", "") in failed(worse)
    dead = [each.text for each in EXHIBIT.claims(worse) if each.verdict is Verdict.DID_NOT_LEARN]
    assert "time saved by A2DTWP, mean" in dead
    assert "VGG: transfer to the device, shorter" in dead


def test_the_oracle_and_bf16_are_rows_where_they_were_trained() -> None:
    static = [row(f"static:{bits}", 1.8, FLAT) for bits in (8, 16, 24)]
    found = {each.text: each for each in EXHIBIT.claims([*rows(), *static, row("bf16", 1.7, FLAT)])}
    behind = found["time of A2DTWP beyond the oracle's"]
    assert behind.mean == pytest.approx(1.84 / 1.8 - 1)
    assert behind.is_met
    under = found["time saved by A2DTWP, under bf16"]
    assert under.mean == pytest.approx(1 - 1.84 / 1.7)
    assert under.verdict is Verdict.NOT_REPRODUCED
