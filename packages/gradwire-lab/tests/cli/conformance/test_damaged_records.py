"""Every command that reads a record answers a damaged one with one sentence, or reads what is left of it.

``GRADWIRE_DAMAGED_RECORDS=N`` damages each record N times instead of a few.
"""

from __future__ import annotations

import copy
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli.main import main
from gradwire.page import kinds
from gradwire.plan import Plan
from gradwire.records import make_record, to_json
from gradwire.timing.line import LineRate, Point
from gradwire_lab.experiments import EXPERIMENTS
from support.hostile_words import DIGITS, BegunError, stub_work

EACH = int(os.environ.get("GRADWIRE_DAMAGED_RECORDS", "15"))
LONGEST_S = 20
STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 40, 1 << 70, 10**400, 1e308, -1e308, 1e-320, "", "x", "\x1b[2J\n", "<script>"),
    *([], {}, [[]], [None], {"x": 1}, float("nan"), float("inf"), "\ud800", "a" * 5000, [0] * 3, "2^-10"),
)
LOOK = {"ranks": [0, 1], "latency_s": 1e-4, "there_nbytes_per_s": 1e8, "back_nbytes_per_s": 1e8}
LINE = {"latency_s": 1e-4, "nbytes_per_s": 1e8}
WHERE = {"topology": None, "options": {"link": None, "data": "laplace"}}
EPOCH = {"epoch": 1, "accuracy": 1.0, "loss": 1.0, "train_s": 1.0, "step": 1, "held_out_loss": 1.0}
RUN = {
    "run": "ddp:identity",
    "steps": 1,
    "epochs": [EPOCH] * 3,
    "raw_nbytes": 1,
    "wire_nbytes": 1,
    "compute_s_per_step": 0.1,
    "codec_s_per_step": 0.1,
    "exposed_s_per_step": 0.1,
    "weights_sha256": "",
}
RECORDS: dict[str, dict[str, Any]] = {
    "gradwire.doctor/1": {
        "findings": [
            {"check": "a", "result": "ok", "detail": "x"},
            {"check": "b", "result": "FAIL", "detail": ""},
        ],
        "ranks": [
            {
                "rank": 0,
                "addresses": ["::1"],
                **dict.fromkeys(("gradwire", "python", "torch", "wire_version", "target"), "1"),
            }
        ],
        "clocks": [{"ranks": [0, 1], "offset_s": 1e-3, "uncertainty_s": 1e-4}],
        "lines": [LOOK],
    },
    "gradwire.line-rate/1": {
        **WHERE,
        "line": LINE,
        "machine_id": "",
        "pairs": [
            {
                "ranks": [0, 1],
                "line": LINE,
                "points": [{"nbytes": 1, "time_s": 1e-4, "nbytes_per_s": 1e8, "duplex_nbytes_per_s": 5e7}]
                * 2,
            }
        ],
    },
    "gradwire.bench-allreduce/2": {
        **WHERE,
        "line": LINE,
        "results": [
            {
                "world": 2,
                "algorithm": "ring",
                "codec": "fp8",
                "nbytes": 64,
                "segment_nbytes": 64,
                "seconds": [0.1],
                "wire_nbytes": [3, 3],
                "ratio": 2.0,
                "largest_error": 0.1,
                "allowed_error": None,
            }
        ],
    },
    "gradwire.train/2": {
        "topology": None,
        "options": {"link": None, "data": "digits", "model": "mlp", "workers": 2},
        "runs": [RUN, {**RUN, "run": "pipe:fp8"}],
    },
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    stub_work(monkeypatch)

    def late(*_: object) -> None:
        raise AssertionError(f"no answer within {LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def damaged(record: dict[str, Any], draw: random.Random) -> bytes:
    """Return a record's file with one thing changed: a value, a name, some bytes, or its end."""
    values = copy.deepcopy(record)
    how = draw.randrange(6)
    if how < 4:
        place = draw.choice(list(places(values)))
        found, key = place
        if how == 0:
            del found[key]
        elif how == 1 and isinstance(found, dict):
            found[draw.choice(["x", "", "\ud800", "schema"])] = found.pop(key)
        else:
            found[key] = draw.choice(STRANGE)
        return json.dumps(values).encode()
    text = bytearray(to_json(values).encode())
    if how == 4:
        return bytes(text[: draw.randrange(len(text))])
    for _ in range(draw.choice([1, 1, 8])):
        text[draw.randrange(len(text))] = draw.randrange(256)
    return bytes(text)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container and key within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(items):
        yield value, key
        yield from places(each)


def tried(command: str, record: dict[str, Any], capfd: pytest.CaptureFixture[str], seed: int) -> list[str]:
    """Damage a record, let a command read it, and return what was no proper answer."""
    bad, draw = list[str](), random.Random(seed)
    for _ in range(EACH):
        content = damaged(record, draw)
        Path("record.json").write_bytes(content)
        capfd.readouterr()
        signal.alarm(LONGEST_S)
        try:
            code = main(command.split())
        except BegunError:
            code = 0
        signal.alarm(0)
        err = capfd.readouterr().err
        one = err.startswith("gradwire") and err.count("\n") == 1 and err[:-1].isprintable()
        if not (one if code == 2 else code == 0 and not err):
            bad.append(f"exit code {code}: {err[-400:]!a} of {content!r:.3000}")
    return bad


@pytest.mark.parametrize("schema", RECORDS)
def test_the_page_of_a_damaged_record_is_one_sentence(schema: str, capfd: pytest.CaptureFixture[str]) -> None:
    record = make_record(schema, RECORDS[schema])
    Path("record.json").write_text(to_json(record))
    assert main(["report", "record.json", "--html", "page.html", "--overwrite"]) == 0
    assert tried("report record.json --html page.html --overwrite", record, capfd, seed=1) == []


def line_rate() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        LineRate.of([Point(1, 2e-4, 1e3, 1e3), Point(1 << 20, 1e-2, 1e8, 1e8)]).to_json()
    )
    return made


READERS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "plan": ("plan --model 300k --hosts 2 --measured record.json", line_rate),
    "train": ("train --plan record.json", lambda: json.loads(Plan.of("quantize:8").to_json())),
    "bench": ("bench allreduce --measured record.json", line_rate),
    "testbed": (
        "testbed run --topology record.json -- true",
        lambda: {"rates": ["1gbit", "1gbit"], "mtu": 1500},
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_command_that_reads_a_damaged_file_says_one_sentence(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command, make = READERS[name]
    assert tried(command, make(), capfd, seed=2) == []


def test_every_kind_of_record_is_among_them_or_tested_beside_its_page() -> None:
    kinds_elsewhere = ("codec-speeds", "choice", "profile", "run", "ledger")
    elsewhere = {f"gradwire.{each}" for each in kinds_elsewhere}
    assert {schema.rpartition("/")[0] for schema in RECORDS} | elsewhere == {*kinds()}


def test_an_experiment_with_damaged_rows_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    for experiment in EXPERIMENTS.values():
        fields: dict[str, Any] = {
            "finished": True,
            "rows": [{"cell": "x", "step_s": 1.0, "hosts": DIGITS[:9]}],
        }
        record = make_record(experiment.schema, fields)
        Path("record.json").write_text(to_json(record))
        code = main(["report", "record.json", "--html", "page.html", "--overwrite"])
        err = capfd.readouterr().err
        assert (code, err.count("\n")) in ((2, 1), (0, 0)), (experiment.name, err)
