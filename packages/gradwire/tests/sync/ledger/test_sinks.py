"""Lines of JSON that add up, TensorBoard through a writer that only remembers, ranges in a profile."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gradwire.costs import ExchangeCost
from gradwire.errors import SpecError
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.sinks import JsonLines, TensorBoard, profiled
from support.ledgers import SMALL


def strictly(line: str) -> dict[str, Any]:
    """Read JSON, which has no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return dict(json.loads(line, parse_constant=refuse))


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text.endswith("\n")
    return [strictly(line) for line in text.splitlines()]


def test_lines_sum_to_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    ledger = Ledger(1, [JsonLines(path)])
    for step in range(5):
        for bucket in ("bucket 1", "bucket 2")[: 1 + step % 2]:
            ledger.exchanged(bucket, SMALL, exposed_s=0.1 * step)
        ledger.bypassed("sparse", "bucket 3", 10 + step)
        ledger.end_step()
    ledger.exchanged("bucket 1", SMALL)  # what a drain leaves
    ledger.close()
    lines, summary = lines_of(path), ledger.summary()
    assert [(line["rank"], line["step"], line["complete"]) for line in lines] == [
        *((1, step, True) for step in range(1, 6)),
        (1, 6, False),
    ]
    assert sum(line["wall_s"] for line in lines) == summary.wall_s
    for bucket, counts in summary.buckets.items():
        of_bucket = [line["buckets"][bucket] for line in lines if bucket in line["buckets"]]
        for name in ("exchanges", "gradient_nbytes", "raw_nbytes", "wire_nbytes", "exposed_s", "codec_s"):
            assert sum(each[name] for each in of_bucket) == pytest.approx(counts.figures()[name], rel=1e-12)
    assert sum(line["total"]["wire_nbytes"] for line in lines) == summary.total.cost.wire_nbytes == 800
    assert [line["total"]["ratio"] for line in lines] == [4.0] * 6
    assert (
        sum(line["bypasses"]["sparse"]["nbytes"] for line in lines[:5]) == summary.bypasses["sparse"].nbytes
    )
    assert lines[5]["bypasses"] == {}
    assert not any(name.startswith("scales") for name in lines[0]["total"])


def test_a_line_can_be_read_as_soon_as_its_step_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    ledger = Ledger(0, [JsonLines(path)])
    for step in (1, 2):
        ledger.end_step()
        assert [line["step"] for line in lines_of(path)] == [*range(1, step + 1)]
    ledger.close()


def test_a_resumed_run_and_other_ranks_go_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    first, second = (Ledger(rank, [JsonLines(path)]) for rank in (0, 1))
    first.end_step()
    second.end_step()
    first.close()
    resumed = Ledger(0, [JsonLines(path)])
    resumed.load_state_dict(first.state_dict())
    resumed.end_step()
    second.close()
    resumed.close()
    assert [(line["rank"], line["step"]) for line in lines_of(path)] == [(0, 1), (1, 1), (0, 2)]


def refusal_of(path: str) -> str:
    """Return what this version of Python says of a path that no file can have."""
    with pytest.raises(ValueError, match="embedded null") as caught:
        os.open(path, os.O_WRONLY)
    return str(caught.value)


def test_a_path_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "none" / "steps.jsonl", "No such file or directory"),
        ("with\0zero", refusal_of("with\0zero")),
    ):
        with pytest.raises(SpecError) as caught:
            JsonLines(path)
        assert str(caught.value) == (
            f"the ledger cannot be written to {path}: {reason}; pass a file that can be written"
        )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="wants /dev/full")
def test_a_full_disk_stops_the_lines_and_not_the_training(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(0, [JsonLines("/dev/full")])
    for _ in range(3):
        ledger.exchanged("a", SMALL)
        ledger.end_step()
    ledger.close()
    (printed,) = caplog.messages
    assert printed.startswith("JsonLines('/dev/full') failed in step 1 and was dropped: ")
    assert "No space left on device" in printed
    assert ledger.summary().steps == 3


def test_no_half_line_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.jsonl"
    ledger = Ledger(0, [JsonLines(path)])
    ledger.end_step()
    whole, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:20]))  # the disk takes no more
    ledger.end_step()
    monkeypatch.undo()
    assert path.read_bytes() == whole
    assert "failed in step 2 and was dropped" in caplog.text
    ledger.close()


class Writer:
    """What TensorBoard's writer is to a ledger."""

    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        assert (tag, global_step) not in self.scalars
        self.scalars[tag, global_step] = scalar_value


def test_tensorboard_gets_the_figures_of_every_step_and_bucket() -> None:
    writer = Writer()
    ledger = Ledger(0, [TensorBoard(writer)])
    ledger.exchanged("bucket 1", SMALL, exposed_s=0.25)
    ledger.exchanged(
        "layers/0",
        ExchangeCost(raw_nbytes=100, wire_nbytes=100, wait_s=0.5),
        exposed_s=0.5,
    )
    ledger.end_step()
    ledger.bypassed("sparse", "bucket 1", 48)
    ledger.end_step()
    ledger.close()
    seen = writer.scalars
    figures = {"ratio", "raw_nbytes", "wire_nbytes", "codec_s", "wait_s", "exposed_s"}
    assert {tag for tag, step in seen if step == 1} == {
        *(f"gradwire/{name}" for name in (*figures, "wall_s", "bypassed_nbytes")),
        *(f"gradwire/bucket_1/{name}" for name in figures),
        *(f"gradwire/layers_0/{name}" for name in figures),
    }
    assert seen["gradwire/ratio", 1] == 2.5
    assert seen["gradwire/bucket_1/ratio", 1] == 4.0
    assert seen["gradwire/exposed_s", 1] == 0.75
    assert seen["gradwire/wait_s", 1] == 1.5
    assert [seen["gradwire/bypassed_nbytes", step] for step in (1, 2)] == [0, 48]


def test_tensorboard_may_have_the_sums_only() -> None:
    writer = Writer()
    ledger = Ledger(0, [TensorBoard(writer, buckets=False)])
    ledger.exchanged("bucket 1", SMALL)
    ledger.end_step()
    assert all(tag.count("/") == 1 for tag, _ in writer.scalars)
    assert writer.scalars["gradwire/wire_nbytes", 1] == 100


def test_a_writer_without_add_scalar_is_refused() -> None:
    with pytest.raises(SpecError, match=r"expected a writer with add_scalar, got 'runs/1'"):
        TensorBoard("runs/1")


def test_a_range_is_in_the_profile() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler, profiled("exchange bucket 1"):
        pass
    (found,) = [event for event in profiler.key_averages() if event.key.startswith("gradwire")]
    assert (found.key, found.count) == ("gradwire: exchange bucket 1", 1)


def test_a_range_of_another_thread_is_in_the_profile_of_all_threads() -> None:
    def exchange() -> None:
        with profiled("exchange bucket 1"):
            pass

    every = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every) as profiler:
        thread = Thread(target=exchange)
        thread.start()
        thread.join(10)
    assert "gradwire: exchange bucket 1" in {event.key for event in profiler.key_averages()}


def test_without_a_profiler_a_range_does_nothing() -> None:
    assert isinstance(profiled("exchange bucket 1"), nullcontext)
