from __future__ import annotations

import pytest
import torch

from gradwire.autotune import costs
from gradwire.autotune.costs import Costs, typical
from gradwire.codecs import Codec, parse
from gradwire.errors import LinkError
from gradwire.machine import cores
from gradwire.timing import calibrate
from gradwire.timing.environment import CodecCost
from gradwire.timing.line import HostCost, Line

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
    environment = own.environment(LINE, CODECS[:1], VALUES)
    assert measured == ["bf16", "host"]
    assert environment.line == LINE
    assert environment.cost("bf16").at(1).nbytes == pytest.approx(2.0, rel=0.01)
    again = own.environment(LINE, CODECS, VALUES)
    assert measured == ["bf16", "host", "quantize:8"]
    assert [*again.codecs] == ["bf16", "quantize:8"]
    assert again.cost("bf16") == environment.cost("bf16")


def test_of_other_gradients_the_sizes_are_measured_anew(measured: list[str]) -> None:
    own, codecs = Costs(2), [parse("ecsq:0.5,sum=0.35"), parse("errbound:2^-10")]
    others = VALUES.clone()
    others[100:] = 0.0
    before = own.environment(LINE, codecs, VALUES)
    assert own.environment(LINE, codecs, others).codecs == before.codecs, "nobody has said so"
    own.forget_sizes()
    after = own.environment(LINE, codecs, others)
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
    assert own.environment(LINE, codecs, VALUES).codecs == after.codecs, "they are known once more"
    own.environment(LINE, codecs[:1], VALUES[:100])
    assert measured[3:] == ["ecsq:0.5,sum=0.35"], "a call for so few values takes longer for each"


def test_a_host_without_a_local_network_has_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def host(*_: object) -> HostCost:
        raise LinkError("no network")

    monkeypatch.setattr(costs, "measure_host", host)
    found = Costs(2).environment(LINE, CODECS[:1], VALUES).host
    assert (found.send_s, found.cores) == (0.0, cores())


def test_codecs_are_measured_with_a_part_of_a_large_gradient() -> None:
    assert torch.equal(typical(VALUES), VALUES)
    assert typical(torch.zeros(1 << 22)).numel() < 1 << 22
