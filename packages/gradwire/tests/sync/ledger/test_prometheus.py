from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gradwire.costs import ExchangeCost
from gradwire.errors import SpecError
from gradwire.sync.ledger import prometheus
from gradwire.sync.ledger.counts import BucketCounts, BypassCounts, Tally
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.prometheus import MOST_LABELS, OTHERS, PrometheusFile, exposition
from support.ledgers import LARGE, SMALL


def samples(text: str) -> dict[tuple[str, str], float]:
    """Return the samples by name and by bucket or reason, as Prometheus' own client reads them."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".")
        for each in family.samples:
            assert each.labels.pop("rank") == "3"
            (label,) = each.labels.values() or ("",)
            assert (each.name, label) not in found
            found[each.name, label] = each.value
    return found


def test_the_text_has_the_summary_of_the_ledger() -> None:
    ledger = Ledger(3)
    for _ in range(4):
        ledger.exchanged("bucket 1", SMALL, exposed_s=0.5)
        ledger.exchanged("bucket 2", replace(LARGE, nonfinite=1))
        ledger.bypassed("sparse", "bucket 3", 8)
        ledger.end_step()
    read, totals = samples(ledger.prometheus()), ledger.summary()
    assert read["gradwire_steps_total", ""] == totals.steps == 4
    assert read["gradwire_wall_seconds_total", ""] == totals.wall_s
    for name, counts in totals.buckets.items():
        figures = counts.figures()
        for metric, figure in {
            "exchanges": "exchanges",
            "gradient_bytes": "gradient_nbytes",
            "raw_bytes": "raw_nbytes",
            "wire_bytes": "wire_nbytes",
            "codec_seconds": "codec_s",
            "wait_seconds": "wait_s",
            "exposed_seconds": "exposed_s",
            "exchange_seconds": "exchange_s",
            "nonfinite_exchanges": "nonfinite",
        }.items():
            assert read[f"gradwire_{metric}_total", name] == figures[figure], metric
    assert read["gradwire_bypasses_total", "sparse"] == 4
    assert read["gradwire_bypassed_bytes_total", "sparse"] == 32


def test_a_new_ledger_has_no_bucket() -> None:
    assert samples(Ledger(3).prometheus()) == {
        ("gradwire_steps_total", ""): 0,
        ("gradwire_wall_seconds_total", ""): 0,
    }


def test_buckets_are_limited_and_counters_never_move() -> None:
    tally = Tally()
    before: dict[tuple[str, str], float] = {}
    for number in range(3 * MOST_LABELS):
        tally.add_bucket(f"bucket {number}", exchanged(SMALL))
        after = samples(exposition(3, 1, 1.0, tally, {}))
        assert all(after[each] >= before[each] for each in before)
        before = after
    wire = {label: figure for (name, label), figure in before.items() if name == "gradwire_wire_bytes_total"}
    assert len(wire) == MOST_LABELS + 1
    assert wire[OTHERS] == 2 * MOST_LABELS * SMALL.wire_nbytes
    assert sum(wire.values()) == tally.total.cost.wire_nbytes


def exchanged(cost: ExchangeCost) -> BucketCounts:
    return BucketCounts(1, 400, 0.0, cost)


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "two\nlines", "{brace} = 1", "\u00fc"])
def test_any_name_survives_as_a_label(name: str) -> None:
    tally = Tally()
    tally.add_bucket(name, exchanged(SMALL))
    tally.add_bypass(name, BypassCounts(2, 8))
    read = samples(exposition(3, 1, 1.0, tally, {name: float("nan")}))
    assert read["gradwire_wire_bytes_total", name] == SMALL.wire_nbytes
    assert read["gradwire_bypasses_total", name] == 2
    assert read["gradwire_relative_error", name] != read["gradwire_relative_error", name]


def test_the_file_is_written_now_and_then_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(prometheus, "monotonic", lambda: now_s[0])
    path = tmp_path / "gradwire-3.prom"
    ledger = Ledger(3, [PrometheusFile(path, every_s=15.0)])
    seen = []
    for _ in range(5):
        ledger.exchanged("bucket 1", SMALL)
        ledger.end_step()
        seen.append(samples(path.read_text())["gradwire_steps_total", ""])
        now_s[0] += 10.0
    assert seen == [1, 1, 3, 3, 5]
    ledger.exchanged("bucket 1", SMALL)  # what a drain leaves
    ledger.close()
    assert samples(path.read_text()) == samples(ledger.prometheus())
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & stat.S_IROTH, "the collector is another user"


def test_without_a_step_there_is_no_file(tmp_path: Path) -> None:
    Ledger(3, [PrometheusFile(tmp_path / "x.prom")]).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("path", "reason"), [("x.txt", "ends in .prom"), ("none/x.prom", "a folder at")])
def test_a_file_that_the_collector_would_not_read_is_refused(tmp_path: Path, path: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        PrometheusFile(tmp_path / path)
