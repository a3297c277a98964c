from __future__ import annotations

import pytest
import torch

from gradwire.auto.times import costs
from gradwire.auto.times.costs import Costs, typical
from gradwire.codecs import Codec, parse
from gradwire.errors import LinkError
from gradwire.machine import cores
from gradwire.timing.measure import calibrate
from gradwire.timing.replay.environment import CodecCost
from gradwire.timing.replay.host import HostCost
from gradwire.timing.replay.line import Line

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


def test_codecs_and_host_are_measured_once_until_gradients_may_be_others(measured: list[str]) -> None:
    own = Costs(2)
    environment = own.environment(LINE, CODECS[:1], VALUES)
    assert measured == ["bf16", "host"]
    assert environment.line == LINE
    assert environment.cost("bf16").at(1).nbytes == pytest.approx(2.0, rel=0.01)
    again = own.environment(LINE, CODECS, VALUES)
    assert measured == ["bf16", "host", "quantize:8"]
    assert [*again.codecs] == ["bf16", "quantize:8"]
    assert again.cost("bf16") == environment.cost("bf16")
    own.forget()
    assert [*own.environment(LINE, CODECS, VALUES).codecs] == ["bf16", "quantize:8"]
    assert measured[3:] == ["bf16", "quantize:8"]


def test_a_host_without_a_local_network_has_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def host(*_: object) -> HostCost:
        raise LinkError("no network")

    monkeypatch.setattr(costs, "measure_host", host)
    found = Costs(2).environment(LINE, CODECS[:1], VALUES).host
    assert (found.send_s, found.cores) == (0.0, cores())


def test_codecs_are_measured_with_a_part_of_a_large_gradient() -> None:
    assert torch.equal(typical(VALUES), VALUES)
    assert typical(torch.zeros(1 << 22)).numel() < 1 << 22
