from __future__ import annotations

import pytest

from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.a2dtwp import EXHIBIT
from support.offloaded_rows import row

FLAT = [0.8, 0.8, 0.8, 0.6, 0.6, 0.6]


def rows(**awp: float) -> list[dict[str, object]]:
    faster = {"transfer_s": 0.1, "packing_cpu_s": 0.03, **awp}
    batch_s = faster.pop("batch_s", 1.5)
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
    assert transfer.mean == pytest.approx(4)


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
    worse = [rows()[0], row("awp", 1.5, [0.8] * 6, transfer_s=0.1)]
    assert ("error above float32's", "") in failed(worse)
    assert ("time saved by A2DTWP, mean", "x86") in failed(worse)
