"""Replays take as long as in the version that replayed in Python; commit ff71b7c4 wrote ``replays.json``."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line
from gradwire.timing.replay import Replay, replay
from support import golden

REPLAYED = golden.load("replays")
SUMS = ("encode_s", "decode_s", "handling_s", "wait_s", "raw_nbytes", "wire_nbytes", "frames")


def replay_of(case: dict[str, Any]) -> Replay:
    cost = dict(case["cost"])
    cost["points"] = tuple(CodecPoint(**each) for each in cost["points"])
    if "finished" in cost:
        cost["finished"] = CodecPoint(**cost["finished"])
    environment = Environment(
        Line(**case["line"]),
        {"c": CodecCost(**cost)},
        HostCost(**case["host"]),
        tuple(Line(**each) for each in case["lines"]),
        tuple(case["groups"]),
        case["core_nbytes_per_s"],
    )
    size = case["count"], case["segment_nbytes"]
    return replay(case["algorithm"], case["world"], *size, "c", environment, case["half"], case["lanes"])


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replay_takes_as_long_as_before(name: str) -> None:
    wanted = REPLAYED[name]
    found = replay_of(wanted["case"])
    got = {name: sum(getattr(rank, name) for rank in found.ranks) for name in SUMS}
    got |= {"total_s": found.total_s, "line_busy_s": found.line_busy_s}
    assert got == pytest.approx({name: wanted[name] for name in got}, rel=1e-9, abs=1e-12)
