"""What a process knows of the testbed that it runs in, from one variable."""

from __future__ import annotations

import json

import pytest

from gradwire.errors import JobError, SpecError
from gradwire.machine import TOPOLOGY, described, described_in_words, is_inside, rates_in_words
from gradwire_lab.testbed.topology import Topology

GBIT = 125e6


def enter(monkeypatch: pytest.MonkeyPatch, topology: Topology) -> None:
    monkeypatch.setenv(TOPOLOGY, json.dumps({"topology": topology.to_dict(), "impairment": "relay"}))


def test_outside_there_is_nothing_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        monkeypatch.delenv(TOPOLOGY, raising=False) if value is None else monkeypatch.setenv(TOPOLOGY, value)
        assert not is_inside()
        assert described() is None
        assert rates_in_words() is None


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (Topology((GBIT,) * 3), "1gbit"),
        (Topology((GBIT, GBIT / 10, GBIT / 2)), "100mbit to 1gbit"),
        (
            Topology((GBIT,) * 4, groups=(2, 2), core_nbytes_per_s=2 * GBIT),
            "1gbit, 2gbit between groups",
        ),
        (Topology((GBIT,), delay_s=0.025), "1gbit, 25ms one way by relay"),
    ],
)
def test_rates_are_told_from_the_slowest_to_the_fastest(
    topology: Topology, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, topology)
    assert is_inside()
    assert rates_in_words() == words


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOPOLOGY, text)
    with pytest.raises(JobError, match=rf"^expected JSON in {TOPOLOGY}, got .*; unset {TOPOLOGY}$"):
        described()


@pytest.mark.parametrize("text", ["3", "{}", '{"topology": 3}', '{"topology": {}}'])
def test_what_describes_no_network_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOPOLOGY, text)
    with pytest.raises(JobError, match=rf"^{TOPOLOGY} holds no valid network: .*; unset {TOPOLOGY}$"):
        rates_in_words()
    with pytest.raises(SpecError, match=r"rates, got .*; run the command that wrote it again$"):
        described_in_words(json.loads(text))
