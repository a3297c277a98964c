"""The line-share experiment: its options, and the shares in its table."""

from __future__ import annotations

import argparse

import pytest

from gradwire.errors import GradwireError
from gradwire.tables import lines
from gradwire.timing.line import Line
from gradwire_lab.experiments import line_share
from support.lone_rank import Alone


def words(**given: object) -> argparse.Namespace:
    usual = {"hosts": 3, "rates": "1gbit", "sizes": "1MB", "codecs": "fp8"}
    return argparse.Namespace(**{**usual, **given})


def test_the_uncompressed_ring_is_always_measured() -> None:
    options = line_share.EXPERIMENT.read(words(codecs="quantize:8,block=256,bf16"))
    assert options.codecs == ("identity", "quantize:8,block=256", "bf16")
    assert line_share.EXPERIMENT.read(words(codecs="fp8,identity")).codecs == ("identity", "fp8")
    cells = line_share.cells(options)
    assert len(cells) == 3 * len(line_share.SEGMENTS)


def test_its_table_has_the_fastest_segment_of_each_codec() -> None:
    figures = {"identity": ((1 << 20, 4.0), (1 << 19, 2.0)), "fp8": ((1 << 20, 1.0), (1 << 19, 1.5))}
    rows = [
        {
            "hosts": 3,
            "rate": "1gbit",
            "nbytes": 1_000_000,
            "codec": codec,
            "segment_nbytes": segment,
            "measured_s": seconds,
            "ratio": 4.0 if codec == "fp8" else 1.0,
            "busbw_nbytes_per_s": 1e8 / seconds,
            "line_nbytes_per_s": 1e8,
        }
        for codec, measured in figures.items()
        for segment, seconds in measured
    ]
    printed = [line.split() for line in lines(*line_share.table(rows))]
    assert ["1gbit", "1MB", "identity", "512KiB", "50", "50.0", "1.00", "1.00x", "100"] in printed
    assert ["1gbit", "1MB", "fp8", "1MiB", "100", "100.0", "4.00", "2.00x", "50"] in printed
    assert sum("1MB" in line for line in printed) == 2


class Measured(Alone):
    """Rank 0 of three, whose link and exchanges have made-up times."""

    world = 3

    def line(self) -> Line:
        return Line(1e-4, 1e8)

    def time_s(self, *_exchange: object, **_limits: object) -> list[float]:
        return [0.5, 9.0, 0.6]

    def ratio(self, *_exchange: object) -> float:
        return 4.0


def test_of_each_network_only_the_link_and_the_exchanges_are_measured() -> None:
    ranks, cell = Measured(), {"nbytes": 3_000_000, "codec": "fp8", "segment_nbytes": 1 << 20}
    line_share.measure(ranks, [cell])  # type: ignore[arg-type]
    figures = {"measured_s": 0.6, "ratio": 4.0, "line_nbytes_per_s": 1e8}
    assert ranks.rows == [{**cell, **figures, "busbw_nbytes_per_s": pytest.approx(3e6 / 0.6 * 4 / 3)}]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"hosts": 1}, "at least 2 hosts"),
        ({"rates": "1gbit,"}, "expected a rate such as"),
        ({"sizes": "1MB,1MB"}, "expected distinct sizes"),
        ({"codecs": "fp9"}, "fp9"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, object], reason: str) -> None:
    with pytest.raises(GradwireError, match=reason):
        line_share.EXPERIMENT.read(words(**given))
