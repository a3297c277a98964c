"""The ledger against sums by hand: from any thread, over steps and resumes, with sinks that fail."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from gradwire.costs import ExchangeCost
from gradwire.errors import JobError, SpecError, StateError
from gradwire.sync.ledger import ledger as ledger_module
from gradwire.sync.ledger.counts import BucketCounts, BypassCounts
from gradwire.sync.ledger.ledger import Ledger
from support.forks import Program
from support.ledgers import LARGE, SMALL, Broken, Kept


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets the ledger's clock, which begins at 0."""
    now = [0.0]
    monkeypatch.setattr(ledger_module, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, seconds)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what will have been registered for the exit of the process, which does not happen."""
    calls: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *call: calls.append(call))
    return calls


def test_sums_are_those_by_hand(clock: Callable[[float], None]) -> None:
    ledger = Ledger(0)
    for end_s in (10.0, 25.0):
        ledger.exchanged("first", SMALL, exposed_s=0.5, gradient_nbytes=300)
        ledger.exchanged("second", LARGE, exposed_s=2.0)
        ledger.exchanged("first", SMALL, gradient_nbytes=300)
        clock(end_s)
        ledger.end_step()
    summary = ledger.summary()
    assert (summary.steps, summary.wall_s) == (2, 25.0)
    assert list(summary.buckets) == ["first", "second"]
    assert summary.buckets["first"] == BucketCounts(
        exchanges=4,
        gradient_nbytes=1200,
        exposed_s=1.0,
        cost=ExchangeCost(1.0, 2.0, 1.0, 4.0, 1600, 400),
    )
    second, total = (
        ExchangeCost(2.0, 4.0, 2.0, 8.0, 8000, 4000),
        ExchangeCost(3.0, 6.0, 3.0, 12.0, 9600, 4400),
    )
    assert summary.buckets["second"] == BucketCounts(2, 8000, 4.0, second)
    assert summary.total == BucketCounts(6, 9200, 5.0, total)
    assert [counts.cost.ratio for counts in summary.buckets.values()] == [4.0, 2.0]
    assert summary.exposed_share == 0.2


def test_threads_lose_nothing_and_every_count_is_in_one_step() -> None:
    sink, threads, each = Kept(), 8, 400
    ledger = Ledger(1, [sink])
    together = Barrier(threads + 1)

    def work(number: int) -> None:
        together.wait()
        for _ in range(each):
            ledger.exchanged(f"bucket {number % 3}", SMALL, exposed_s=0.5)
            ledger.bypassed(f"reason {number % 2}", "bucket", 7)

    workers = [Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    together.wait()
    while any(worker.is_alive() for worker in workers):
        ledger.end_step()
    ledger.end_step()

    summary = ledger.summary()
    by_bucket = [len(range(number, threads, 3)) * each for number in range(3)]
    for number, count in enumerate(by_bucket):
        counts = summary.buckets[f"bucket {number}"]
        assert (counts.exchanges, counts.cost.wire_nbytes, counts.cost.codec_s) == (
            count,
            100 * count,
            0.75 * count,
        )
    assert set(summary.bypasses.values()) == {BypassCounts(4 * each, 7 * 4 * each)}
    assert summary.total.exposed_s == threads * each * 0.5
    assert [step.step for step in sink.steps] == list(range(1, summary.steps + 1))
    assert sum(step.tally.total.exchanges for step in sink.steps) == threads * each
    assert sum(step.tally.bypassed.count for step in sink.steps) == threads * each


def test_a_step_holds_what_came_since_the_one_before(clock: Callable[[float], None]) -> None:
    sink = Kept()
    ledger = Ledger(3, [sink])
    ledger.exchanged("a", SMALL)
    clock(2.0)
    ledger.end_step()
    clock(5.0)
    ledger.end_step()
    ledger.bypassed("sparse", "b", 12)
    ledger.close()
    ledger.close()
    assert [(step.rank, step.step, step.complete, step.wall_s) for step in sink.steps] == [
        (3, 1, True, 2.0),
        (3, 2, True, 3.0),
        (3, 3, False, 0.0),
    ]
    assert [list(step.tally.buckets) for step in sink.steps] == [["a"], [], []]
    assert sink.steps[2].tally.bypasses == {"sparse": BypassCounts(1, 12)}
    assert sink.closed == 1
    assert ledger.summary().steps == 2


def test_a_summary_does_not_change_afterwards_and_has_the_open_step() -> None:
    ledger = Ledger(0)
    ledger.exchanged("a", SMALL)
    ledger.end_step()
    ledger.exchanged("a", SMALL)
    summary = ledger.summary()
    ledger.exchanged("a", SMALL)
    ledger.end_step()
    assert (summary.steps, summary.buckets["a"].exchanges) == (1, 2)


def test_each_reason_is_logged_once_and_all_bypasses_are_counted(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(0)
    for _ in range(3):
        ledger.bypassed("its gradient is float64", "bucket 2", 1000)
        ledger.bypassed("its gradient is sparse", "bucket 4", 24)
        ledger.end_step()
    assert capsys.readouterr() == ("", "")
    assert {(record.name, record.levelname) for record in caplog.records} == {("gradwire", "WARNING")}
    assert caplog.messages == [
        "compression did not run for bucket 2 (1kB): its gradient is float64; further cases are "
        "counted, not logged",
        "compression did not run for bucket 4 (24B): its gradient is sparse; further cases are "
        "counted, not logged",
    ]
    assert ledger.summary().bypasses == {
        "its gradient is float64": BypassCounts(3, 3000),
        "its gradient is sparse": BypassCounts(3, 72),
    }


def bypass() -> None:
    Ledger(0).bypassed("its gradient is sparse", "bucket 4", 24)


@pytest.mark.processes
def test_a_program_without_logging_reads_it_on_standard_error(tmp_path: Path) -> None:
    done = Program(tmp_path / "log", tmp_path, {}, bypass).ended()
    assert done.stderr.startswith(
        "gradwire: compression did not run for bucket 4 (24B): its gradient is sparse"
    )
    assert done.stderr.count("\n") == 1


def test_only_rank_0_prints(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, registered: list[Any]
) -> None:
    ledger = Ledger(1, [Broken()], at_exit=True)
    for _ in range(3):
        ledger.bypassed("sparse", "bucket 1", 4)
        ledger.end_step()
    ledger.close()
    assert capsys.readouterr() == ("", "")
    assert caplog.messages == []
    assert registered == []
    assert "Broken" in str(ledger.summary())


def test_a_ledger_that_is_refused_prints_nothing_at_exit(tmp_path: Path, registered: list[Any]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match="cannot be written"):
        Ledger(0, at_exit=True, folder=tmp_path / "file" / "run")
    assert registered == []


def test_a_failing_sink_is_reported_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    broken, kept = Broken(), Kept()
    ledger = Ledger(0, [broken, kept])
    for _ in range(4):
        ledger.exchanged("a", SMALL)
        ledger.end_step()
    ledger.close()
    sentence = "Broken failed in step 2 and was dropped: the disk is on fire"
    assert caplog.messages == [f"{sentence}; training continues without this sink"]
    assert (len(broken.steps), broken.closed) == (2, 1)
    assert (len(kept.steps), kept.closed) == (4, 1)
    assert ledger.summary().lost_sinks == (sentence,)
    assert ledger.summary().total.exchanges == 4


def test_a_resumed_ledger_goes_on_counting(clock: Callable[[float], None]) -> None:
    whole, before = Ledger(2), Ledger(2)
    for ledger in (whole, before):
        ledger.exchanged("a", SMALL, exposed_s=0.25)
        ledger.bypassed("sparse", "b", 12)
    clock(4.0)
    whole.end_step()
    before.end_step()
    for ledger in (whole, before):
        ledger.exchanged("b", LARGE)  # a step that the checkpoint interrupts

    sink = Kept()
    after = Ledger(2, [sink])
    after.exchanged("forgotten", LARGE)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    for ledger in (whole, after):
        ledger.exchanged("a", SMALL)
        ledger.end_step()
    assert after.summary() == whole.summary()
    assert [step.step for step in sink.steps] == [2]
    assert list(sink.steps[0].tally.buckets) == ["b", "a"]


EARLIER: dict[str, Any] = {
    "exchanges": 1,
    "gradient_nbytes": 400,
    "raw_nbytes": 400,
    "wire_nbytes": 100,
    "codec_s": 0.75,
}
EARLIER |= {"link_s": 1.0, "exposed_s": 0.5, "exchange_s": 2.0, "largest_error": None}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("counted", [{}, {"nonfinite": 3}])
def test_a_state_of_an_earlier_gradwire_is_read(version: int, counted: dict[str, int]) -> None:
    ledger = Ledger(2)
    empty: dict[str, Any] = {"buckets": {}, "bypasses": {}}
    rows = {"buckets": {"a": EARLIER | counted}, "bypasses": {"why": {"count": 2, "nbytes": 8}}}
    state = {"version": version, "rank": 2, "steps": 1, "wall_s": 4.0, "ended": rows, "open": empty}
    ledger.load_state_dict(state | {"lost": Ledger(2).state_dict()["lost"]})
    figures, summary = ledger.summary().total.figures(), ledger.summary()
    assert figures.pop("wait_s") == 1.0
    assert figures.pop("ratio") == 4.0
    assert (
        figures
        == {"nonfinite": 0, "device_nbytes": 0}
        | {k: v for k, v in EARLIER.items() if k not in ("link_s", "largest_error")}
        | counted
    )
    assert (summary.steps, summary.bypasses) == (1, {"why": BypassCounts(2, 8)})


def test_a_state_of_version_3_with_errors_that_nobody_measured_is_read() -> None:
    ledger, resumed = Ledger(1), Ledger(1)
    ledger.exchanged("a", SMALL, exposed_s=0.25)
    ledger.end_step()
    state = ledger.state_dict()
    state["ended"]["buckets"]["a"]["largest_error"] = None
    with pytest.raises(StateError, match="the counts of rank 1 do not match their checksum"):
        resumed.load_state_dict(state)
    del state["crc32c"]  # as version 3 wrote it
    resumed.load_state_dict(state | {"version": 3})
    assert resumed.summary() == ledger.summary()


def altered(**changes: object) -> dict[str, Any]:
    ledger = Ledger(1)
    ledger.exchanged("a", SMALL)
    ledger.end_step()
    return {**ledger.state_dict(), **changes}


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (altered(rank=0), "got the state of rank 0;"),
        (altered(version=6), "one of 1, 2, 3, 4, 5 for version"),
        (altered(steps="3"), "a whole number of at least 0 for steps"),
        (altered(ended={}), "buckets"),
        (altered(ended={"buckets": {"a": {"exchanges": 1}}, "bypasses": {}}), r"buckets\.a"),
        (altered(ended={"buckets": {"a": EARLIER | {"link_s": "1"}}, "bypasses": {}}), r"buckets\.a"),
        (altered(ended={"buckets": {"a": [1]}, "bypasses": {}}), r"buckets\.a"),
        (
            altered(open={"buckets": {}, "bypasses": {"why": {"count": 1, "nbytes": "7"}}}),
            r"bypasses\.why\.nbytes",
        ),
        ("no state", "no state"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(state: Any, word: str) -> None:
    ledger = Ledger(1)
    ledger.exchanged("mine", SMALL)
    ledger.end_step()
    before = ledger.state_dict()
    with pytest.raises(StateError, match=word):
        ledger.load_state_dict(state)
    assert ledger.state_dict() == before


@pytest.mark.parametrize("rank", [-1, 1.5, None, True])
def test_a_rank_that_is_none_is_refused(rank: Any) -> None:
    with pytest.raises(SpecError, match="a whole number of at least 0"):
        Ledger(rank)


def test_a_sink_that_cannot_write_is_refused() -> None:
    with pytest.raises(SpecError, match=r"got 'log\.jsonl'; pass JsonLines"):
        Ledger(0, ["log.jsonl"])  # type: ignore[list-item]


AT_EXIT = """
import sys
from gradwire.costs import ExchangeCost
from gradwire.sync.ledger.ledger import Ledger
for rank in (0, 1):
    ledger = Ledger(rank, at_exit=True)
    ledger.exchanged(f"bucket of rank {rank}", ExchangeCost(raw_nbytes=8, wire_nbytes=4))
    ledger.end_step()
if "stopped" in sys.argv:
    raise SystemExit(3)
"""


@pytest.mark.processes
def test_rank_0_prints_its_summary_at_exit() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_EXIT, "stopped"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith("gradwire, rank 0: 1 step in ")
    assert "bucket of rank 0 " in ended.stderr
    assert "rank 1" not in ended.stderr


def test_the_exit_raises_nothing_where_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, registered: list[Any]
) -> None:
    Ledger(0, at_exit=True).end_step()
    ((function, *arguments),) = registered
    for nobody in (None, open_and_closed()):
        monkeypatch.setattr(sys, "stderr", nobody)
        function(*arguments)


def open_and_closed() -> Any:
    with open("/dev/null", "w") as file:
        return file
