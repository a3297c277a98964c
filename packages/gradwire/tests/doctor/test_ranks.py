"""A rank that cannot meet the others reports itself; whole visits are in ``cli/test_doctor``."""

from __future__ import annotations

import socket

import pytest

from gradwire.doctor import ranks
from gradwire.doctor.finding import Card, Diagnosis, DoctorOptions, Finding
from gradwire.doctor.ranks import examine_ranks


def test_a_rank_without_a_rendezvous_reports_what_it_found_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card("1", "3", "2", 1, "scalar", "0", "m", ("::1",), True, "", (Finding("torch", "ok", ""),))
    monkeypatch.setattr(ranks, "examine_machine", lambda *_: card)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        variables = ("1", "3", "127.0.0.1", str(unused.getsockname()[1]))
        for name, value in zip(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), variables, strict=True):
            monkeypatch.setenv(name, value)
        title, diagnosis = examine_ranks(1, 3, DoctorOptions(timeout_s=0.3))
    assert title == "gradwire doctor: rank 1 of 3"
    assert isinstance(diagnosis, Diagnosis)
    found = [(each.check, each.result) for each in diagnosis.findings]
    assert found == [("torch", "ok"), ("rendezvous", "FAIL")]
    assert (diagnosis.cards, diagnosis.ranks) == ([card], [1])
