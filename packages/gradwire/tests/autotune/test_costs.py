from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from gradwire import Auto, Link
from gradwire.autotune import costs
from gradwire.autotune.costs import Costs, at_once, typical
from gradwire.codecs import Codec, parse
from gradwire.errors import LinkError
from gradwire.machine import cores
from gradwire.timing import calibrate, pairs
from gradwire.timing.environment import CodecCost
from gradwire.timing.line import HostCost, Line
from support.piloted import Run
from support.ranks import run_ranks
from support.told_line import WARM_UP, tell_line

LINE = Line(1e-4, 1e7)
CODECS = [parse("bf16"), parse("quantize:8")]
VALUES = torch.randn(1 << 14, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def codec_cost(codec: Codec, *others: object) -> CodecCost:
        found.append(str(codec))
        return calibrate.codec_cost(codec, *others)  # type: ignore[arg-type]

    def host(*_: object) -> HostCost:
        found.append("host")
        return HostCost(cores=4)

    monkeypatch.setattr(costs, "codec_cost", codec_cost)
    monkeypatch.setattr(costs, "measure_host", host)
    return found


def test_codecs_and_host_are_measured_once(measured: list[str]) -> None:
    own = Costs(2)
    environment = at_once(own.environment(LINE, CODECS[:1], {1: VALUES}))
    assert measured == ["bf16", "host"]
    assert environment.line == LINE
    assert environment.cost("bf16").at(1).nbytes == pytest.approx(2.0, rel=0.01)
    again = at_once(own.environment(LINE, CODECS, {1: VALUES}))
    assert measured == ["bf16", "host", "quantize:8"]
    assert [*again.codecs] == ["bf16", "quantize:8"]
    assert again.cost("bf16") == environment.cost("bf16")


def test_the_sum_of_all_ranks_has_its_own_sizes_and_the_same_times(measured: list[str]) -> None:
    own, codec, sums = Costs(2), parse("ecsq:0.5,sum=0.35"), VALUES.clone()
    sparse = torch.where(VALUES > 1.0, VALUES, 0.0)
    before = at_once(own.environment(LINE, [codec], {1: sparse})).cost(str(codec))
    found = at_once(own.environment(LINE, [codec], {1: sparse, 4: sums})).cost(str(codec))
    assert measured == [str(codec), "host"]
    assert [each.terms for each in found.points] == [1, 4]
    assert found.at(1).nbytes == pytest.approx(codec.encode(sparse).numel() / len(sparse))
    assert found.at(4).nbytes == codec.encode(sums).numel() / len(sums)
    assert found.of(4, 4).nbytes == codec.of_sums.encode(sums).numel() / len(sums)
    assert found.at(1).nbytes < found.at(2).nbytes < found.at(4).nbytes
    assert found.at(4).encode_s == found.at(1).encode_s == before.at(1).encode_s
    again = at_once(own.environment(LINE, [codec], {1: sparse}))
    assert again.cost(str(codec)).at(1).nbytes == before.at(1).nbytes, "a sum that is gone is not used"
    assert len(again.cost(str(codec)).points) == 1


def test_of_other_gradients_the_sizes_are_measured_anew(measured: list[str]) -> None:
    own, codecs = Costs(2), [parse("ecsq:0.5,sum=0.35"), parse("errbound:2^-10")]
    others = VALUES.clone()
    others[100:] = 0.0
    before = at_once(own.environment(LINE, codecs, {1: VALUES}))
    assert at_once(own.environment(LINE, codecs, {1: others})).codecs == before.codecs, "nobody has said so"
    own.forget_sizes()
    after = at_once(own.environment(LINE, codecs, {1: others}))
    assert measured == ["ecsq:0.5,sum=0.35", "errbound:2^-10", "host"]
    for codec in codecs:
        (was,), (now,) = (each.cost(str(codec)).points for each in (before, after))
        assert now.nbytes == codec.encode(others).numel() / len(others) < was.nbytes
        assert now.largest_error <= codec.bound(others)
        assert (now.encode_s, now.decode_s, now.decode_add_s) == (
            was.encode_s,
            was.decode_s,
            was.decode_add_s,
        )
    finished = after.cost("ecsq:0.5,sum=0.35").finished
    assert finished is not None
    assert finished.nbytes == parse("ecsq:0.35").encode(others).numel() / len(others)
    assert finished.encode_s > 0
    assert at_once(own.environment(LINE, codecs, {1: VALUES})).codecs == after.codecs, (
        "they are known once more"
    )
    at_once(own.environment(LINE, codecs[:1], {1: VALUES[:100]}))
    assert measured[3:] == ["ecsq:0.5,sum=0.35"], "a call for so few values takes longer for each"


def test_a_host_without_a_local_network_has_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def host(*_: object) -> HostCost:
        raise LinkError("no network")

    monkeypatch.setattr(costs, "measure_host", host)
    found = at_once(Costs(2).environment(LINE, CODECS[:1], {1: VALUES})).host
    assert (found.send_s, found.cores) == (0.0, cores())


def test_codecs_are_measured_with_a_part_of_a_large_gradient() -> None:
    assert torch.equal(typical(VALUES), VALUES)
    assert typical(torch.zeros(1 << 22)).numel() < 1 << 22


def test_the_slowest_kind_of_host_counts(measured: list[str]) -> None:
    codecs = [parse("identity"), parse("ecsq:0.5,sum=0.35")]
    own, other = Costs(2), Costs(8)
    assert own.row(codecs) == [0.0] * len(own.row(codecs)), "nothing is timed"
    before = at_once(own.environment(LINE, codecs, {1: VALUES}))
    at_once(other.environment(LINE, codecs, {1: VALUES}))
    slow = [3 * each for each in other.row(codecs)[:-2]]
    crowded = [*slow, 4.0, 8.0]
    own.take_slowest(codecs, [own.row(codecs), [0.0] * len(crowded), crowded])
    after = at_once(own.environment(LINE, codecs, {1: VALUES}))
    for codec in codecs:
        (was,), (now,) = (each.cost(str(codec)).points for each in (before, after))
        assert now.nbytes == was.nbytes
        assert now.encode_s >= was.encode_s
    finished = after.cost("ecsq:0.5,sum=0.35").finished
    assert finished is not None
    assert finished.encode_s == max(slow[11], own.row(codecs)[11])
    assert (after.host.cores, after.host.ranks_per_machine) == (4, 8), "half a core for each rank"
    assert measured == ["identity", "ecsq:0.5,sum=0.35", "host"] * 2, "nothing is timed twice"


def test_a_slower_host_among_others_changes_the_plan_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One host encodes a thousand times as slowly; rank 0, on a fast one, takes this into account."""
    tell_line(monkeypatch)

    def plans(slow: int | None) -> list[str]:
        def told(codec: Codec, *others: object) -> CodecCost:
            cost = calibrate.codec_cost(codec, *others)  # type: ignore[arg-type]
            each_s = 1e-9 if codec.EXACT or here.rank != slow else 1e-3
            points = tuple(
                replace(each, encode_s=each_s, decode_s=each_s, decode_add_s=each_s) for each in cost.points
            )
            return replace(cost, points=points, finished=None, call_s=1e-6)

        def run(link: Link) -> str:
            here.rank = link.rank
            one = Run(link, Auto(codecs=["fp8"]))
            for number in range(1, WARM_UP + 3):
                one.step(number)
            return str(one.exchange.plan.codec)

        monkeypatch.setattr(costs, "codec_cost", told)
        monkeypatch.setattr(pairs, "processor", lambda: f"model {here.rank}")
        return run_ranks(3, run)

    here = threading.local()
    assert plans(None) == ["fp8"] * 3
    assert plans(2) == ["identity"] * 3
