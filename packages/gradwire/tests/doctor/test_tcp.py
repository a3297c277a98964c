"""Findings about the kernel's TCP: congestion control, slow start after idle, and the limits of buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from gradwire.doctor.finding import Card, Look, TcpSettings
from gradwire.doctor.tcp import check_congestion, check_distance, find_tcp
from gradwire.links.rendezvous import options

Cards = Callable[..., list[Card]]
GOOD = TcpSettings(send_nbytes=16 << 20, receive_nbytes=16 << 20, slow_start_after_idle=0)
WAN = Look(0.05, 25e6, 20e6)  # 200 Mbit/s there and 160 back, over a round trip of 100 ms: 2.5 MB under way


def test_the_kernels_settings_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (
        ("tcp_wmem", "4096\t16384\t4194304\n"),
        ("tcp_rmem", "4096\t131072\t6291456\n"),
        ("tcp_slow_start_after_idle", "1\n"),
    ):
        (tmp_path / name).write_text(text, encoding="ascii")
    monkeypatch.setattr(options, "_KERNEL", tmp_path)
    assert find_tcp() == TcpSettings(4194304, 6291456, 1)
    monkeypatch.setattr(options, "_KERNEL", tmp_path / "none")
    assert find_tcp() == TcpSettings()


def test_a_congestion_control_that_the_kernel_does_not_have_fails() -> None:
    finding = check_congestion({"GRADWIRE_TCP_CONGESTION": "nosuch"})
    assert (finding.check, finding.result) == ("TCP", "FAIL")
    assert "got 'nosuch'; choose one of these" in finding.detail
    chosen = check_congestion({"GRADWIRE_TCP_CONGESTION": "reno"})
    assert (chosen.result, chosen.detail) == ("ok", "congestion control reno (GRADWIRE_TCP_CONGESTION)")
    assert check_congestion({}).detail.endswith(" (the kernel's default)")


@pytest.mark.parametrize(("latency_s", "warns"), [(2.4e-3, False), (2.6e-3, True)])
def test_slow_start_after_idle_matters_to_distant_hosts(
    make_cards: Cards, latency_s: float, warns: bool
) -> None:
    slow = TcpSettings(16 << 20, 16 << 20, 1)
    cards = make_cards(3, {0: {"tcp": GOOD}, 1: {"tcp": slow}, 2: {"tcp": slow}})
    looks = {1: Look(1e-4, 1e8, 1e8), 2: Look(latency_s, 1e8, 1e8)}
    (finding,) = check_distance(cards, looks)
    if not warns:
        assert (finding.check, finding.result) == ("distance", "ok")
        assert finding.detail.endswith("round trip is 4.8ms")
        return
    assert (finding.check, finding.result) == ("idle links", "warn")
    assert finding.detail.startswith("ranks 1-2: after a pause")
    assert finding.detail.endswith("round trips of 5.2ms; run sysctl -w net.ipv4.tcp_slow_start_after_idle=0")


def test_hosts_with_suitable_settings_are_well_at_any_distance(make_cards: Cards) -> None:
    (finding,) = check_distance(make_cards(2, {rank: {"tcp": GOOD} for rank in range(2)}), {1: WAN})
    assert (finding.check, finding.result) == ("distance", "ok")
    assert finding.detail == "the kernel's settings suit a round trip of 100ms"


def test_unknown_settings_are_no_problem(make_cards: Cards) -> None:
    assert [each.result for each in check_distance(make_cards(2), {1: WAN})] == ["ok"]


@pytest.mark.parametrize("field", ["send_nbytes", "receive_nbytes"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("limit", "warns"), [(4_900_000, True), (5_100_000, False)])
def test_bytes_in_flight_that_reach_half_of_a_buffers_limit_are_a_warning(
    make_cards: Cards, field: str, rank: int, limit: int, warns: bool
) -> None:
    """2.5 MB are under way in the faster direction, and the slower one's 2.0 MB never reach these limits."""
    there = Look(0.05, 25e6, 20e6) if (field == "send_nbytes") == (rank == 0) else Look(0.05, 20e6, 25e6)
    kernel = {"send_nbytes": 16 << 20, "receive_nbytes": 16 << 20} | {field: limit}
    cards = make_cards(2, {each: {"tcp": GOOD} for each in range(2)} | {rank: {"tcp": TcpSettings(**kernel)}})
    (finding,) = check_distance(cards, {1: there})
    assert finding.result == ("warn" if warns else "ok")
    if warns:
        assert finding.check == "TCP buffers"
        assert finding.detail.startswith(
            "ranks 0 and 1: 2.5MB in flight (200mbit over a round trip of 100ms)"
        )
        assert "net.ipv4.tcp_wmem='4096 16384 10000000'" in finding.detail
        assert "net.ipv4.tcp_rmem='4096 131072 10000000'" in finding.detail


def test_the_rate_is_that_of_the_direction_that_a_buffer_limits(make_cards: Cards) -> None:
    kernels = TcpSettings(2_000_000, 64 << 20), TcpSettings(64 << 20)
    cards = make_cards(2, {rank: {"tcp": kernel} for rank, kernel in enumerate(kernels)})
    (finding,) = check_distance(cards, {1: Look(0.05, 12.5e6, 125e6)})
    assert finding.detail.startswith("ranks 0 and 1: 1.25MB in flight (100mbit over a round trip of 100ms)")


def test_the_tightest_link_is_named(make_cards: Cards) -> None:
    small = TcpSettings(1 << 20, 1 << 20, 0)
    cards = make_cards(3, {rank: {"tcp": small} for rank in range(3)})
    (finding,) = check_distance(cards, {1: Look(0.05, 6e6, 6e6), 2: Look(0.05, 7e6, 6e6)})
    assert finding.detail.startswith("ranks 0 and 2: 700kB in flight (56mbit over")


def test_a_rank_sends_its_settings_with_its_card(make_cards: Cards) -> None:
    (card,) = make_cards(1, {0: {"tcp": GOOD}})
    assert Card.from_dict(asdict(card)).tcp == GOOD
