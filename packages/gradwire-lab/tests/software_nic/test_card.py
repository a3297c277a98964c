"""Two hosts with NICs between them: real TCP of this kernel, in namespaces."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradwire.errors import NicError
from gradwire_gateware.software_nic import Nic, Settings
from gradwire_lab.testbed.namespaces import inside
from support.beds import needs_namespaces
from support.nic_bed import SPEC, bed, gradients, ip, payload_nbytes, projected, transfer
from support.noise import likely, undisturbed

pytestmark = [pytest.mark.processes, needs_namespaces]
Call = Callable[..., Any]


def _stream(mtu: int, spec: str) -> None:
    undisturbed(lambda: _stream_once(mtu, spec))


def _stream_once(mtu: int, spec: str) -> None:
    values = gradients(250_000)
    expected = projected(values, spec)
    with bed(mtu) as made:
        one, other = made.start_both(spec)
        with made.connection() as (client, accepted):
            there = np.frombuffer(transfer(client, accepted, values.tobytes()), np.uint32)
            back = transfer(accepted, client, expected.tobytes())
        to_link, to_host = one.counts()["to_link"], other.counts()["to_host"]
    as_coded, as_sent = there == expected.view(np.uint32), there == values.view(np.uint32)
    assert np.count_nonzero(as_coded) > 0.98 * values.size
    assert np.all(as_coded | as_sent)  # whole, where TCP has cut a value, or a few at the end
    assert back == expected.tobytes()  # of which the codec leaves every bit
    assert to_link["compressed"] >= to_host["restored"] > payload_nbytes(values, spec) // mtu
    likely(to_link["compressed"] < 1.3 * payload_nbytes(values, spec) / (mtu - 74) + 30, to_link)  # full
    assert to_link["raw_no_peer"] == to_link["raw_unseen"] == to_host["malformed"] == 0, (to_link, to_host)
    # Where TCP has to wait it may cut a piece of a value or two, which can't shrink.
    likely(to_link["raw_larger"] < 0.02 * to_link["compressed"] + 3, to_link)
    assert (
        to_link["payload_bytes"] >= to_host["payload_bytes"] > 0.98 * values.nbytes
    )  # more, if some went again
    coded = payload_nbytes(values, spec)  # of all values at once
    again = to_link["payload_bytes"] / values.nbytes
    body = to_link["body_bytes"] - 8 * to_link["compressed"]
    assert again * coded - 1400 <= body <= again * coded + 1400 + 2 * to_link["compressed"]
    headers = 14 + 20 + 60  # at most, for each frame, acknowledgements among them
    assert coded < to_link["bytes_out"] <= to_link["body_bytes"] + headers * to_link["frames_out"]


@pytest.mark.parametrize(
    ("mtu", "spec"),
    [
        (1500, SPEC),
        (1400, "inceptionn:2^-6,bounded"),
        (9000, SPEC),
        (1500, "truncate:16"),
        (9000, "bitpack:2"),
    ],
)
def test_a_marked_stream_arrives_as_the_codec_makes_it(call: Call, mtu: int, spec: str) -> None:
    call(_stream, mtu, spec)


def _other_traffic() -> None:
    data = np.random.default_rng(2).bytes(3_000_001)
    with bed() as made:
        one, other = made.start_both()
        with made.connection(tos=0) as (client, accepted):
            assert transfer(client, accepted, data) == data
            assert transfer(accepted, client, data) == data
        with made.connection(tos=0x10) as (client, accepted):
            assert transfer(client, accepted, data[:99_999]) == data[:99_999]
        with inside(made.host["b"]):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with inside(made.host["a"]):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with receiver, sender:
            receiver.bind(("10.9.0.2", 99))
            receiver.settimeout(20)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
            for size in (1, 1000, 9000):  # the last in fragments
                sender.sendto(data[:size], ("10.9.0.2", 99))
                assert receiver.recv(10_000) == data[:size]
        for card in (one, other):
            counts = card.counts()
            assert {way["compressed"] + way["restored"] + way["offers"] for way in counts.values()} == {0}


def test_other_traffic_passes_unchanged(call: Call) -> None:
    call(_other_traffic)


def _small_writes() -> None:
    values = projected(gradients(20_000))
    cuts = np.random.default_rng(3).integers(1, 14, 3000).tolist()
    with bed() as made:
        one, _ = made.start_both()
        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes(), cuts) == values.tobytes()
        assert one.counts()["to_link"]["compressed"] > 0  # a busy sender's writes leave in few segments


def test_values_cut_anywhere_arrive_whole(call: Call) -> None:
    call(_small_writes)


def _faults(drop: float, reorder: float) -> None:
    values = projected(gradients(400_000))
    with bed() as made:
        one, other = made.start_both(drop=drop, reorder=reorder, seed=4)
        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes(), [999, 1447, 2]) == values.tobytes()
        sent, came = one.counts()["to_link"], other.counts()["to_host"]
    assert (sent["faults_dropped"] > 0) == (drop > 0)
    assert (sent["faults_reordered"] > 0) == (reorder > 0)
    assert came["malformed"] == 0
    assert came["restored"] > payload_nbytes(values) // 1448


@pytest.mark.parametrize(("drop", "reorder"), [(0.02, 0.0), (0.0, 0.05), (0.01, 0.02)])
def test_lost_and_reordered_packets_change_no_value(call: Call, drop: float, reorder: float) -> None:
    call(_faults, drop, reorder)


def _singles() -> None:
    values = projected(gradients(100_000))
    with bed() as made:
        one, _ = made.start_both(merge=False)
        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes()) == values.tobytes()
        assert one.counts()["to_link"]["compressed"] >= values.nbytes // 1448


def test_nics_may_keep_to_a_packet_for_each_segment(call: Call) -> None:
    call(_singles)


def _change_mtu(mtu: int) -> None:
    values = projected(gradients(400_000))
    with bed(mtu=1500) as made:
        one, other = made.start_both()

        def change() -> None:
            for side in ("a", "b"):
                ip(made.host[side], f"link set dev eth0 mtu {mtu}")
                ip(made.place[side], f"link set dev host mtu {mtu}", f"link set dev link mtu {mtu}")

        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes(), meanwhile=change) == values.tobytes()
            assert transfer(accepted, client, values.tobytes()) == values.tobytes()
        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes()) == values.tobytes()
        assert one.counts()["to_link"]["compressed"] > 100
        assert other.counts()["to_host"]["malformed"] == 0


@pytest.mark.parametrize("mtu", [1300, 9000])
def test_the_mtu_may_change_in_the_middle_of_a_stream(call: Call, mtu: int) -> None:
    call(_change_mtu, mtu)


def _one_sided(which: str) -> None:
    values = gradients(100_000)
    with bed(nic_at_a=False) as made:
        card = made.start("b")
        with made.connection() as (client, accepted):
            ends = (client, accepted) if which == "arriving" else (accepted, client)
            assert transfer(*ends, values.tobytes()) == values.tobytes()
        counts = card.counts()
    assert counts["to_link"]["compressed"] == counts["to_host"]["restored"] == 0
    assert counts["to_link"]["offers"] == 0  # no SYN left with an offer, as none came with one


@pytest.mark.parametrize("which", ["arriving", "leaving"])
def test_without_a_nic_at_the_peer_all_passes(call: Call, which: str) -> None:
    call(_one_sided, which)


def _other_settings() -> None:
    values = gradients(100_000)
    with bed() as made:
        one, other = made.start("a", SPEC), made.start("b", "inceptionn:2^-9")
        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes()) == values.tobytes()
            assert transfer(accepted, client, values.tobytes()) == values.tobytes()
        for card in (one, other):
            counts = card.counts()
            assert counts["to_host"]["other_codec"] == 1
            assert counts["to_link"]["raw_no_peer"] > 0
            assert counts["to_link"]["compressed"] == 0


def test_nics_with_other_settings_do_not_compress(call: Call) -> None:
    call(_other_settings)


def _restart(side: str, spec: str) -> None:
    values = projected(gradients(3_000_000))
    with bed(rate="200mbit") as made:
        made.start_both()

        def replace() -> None:
            made.cards[side].close()
            made.start(side, spec)

        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes(), meanwhile=replace) == values.tobytes()
            assert transfer(accepted, client, values.tobytes()[:4000]) == values.tobytes()[:4000]
        sent, came = made.cards["a"].counts()["to_link"], made.cards["b"].counts()["to_host"]
    if side == "a":  # it has not seen the beginning
        assert sent["compressed"] == 0
        assert sent["raw_unseen"] > 0
    elif spec == SPEC:  # a compressed packet says all that restoring it takes
        assert came["restored"] > 100
        assert came["malformed"] == 0
    else:  # until the other NIC learns that they do not arrive
        assert came["malformed"] > 0
        assert came["restored"] == 0
        assert sent["raw_repeated"] > 0


@pytest.mark.parametrize(("side", "spec"), [("a", SPEC), ("b", SPEC), ("b", "inceptionn:2^-9")])
def test_a_nic_may_be_replaced_in_the_middle_of_a_stream(call: Call, side: str, spec: str) -> None:
    call(_restart, side, spec)


def _mixed() -> None:
    values = projected(gradients(200_000))
    data = np.random.default_rng(5).bytes(200_000)
    with bed() as made:
        one, _ = made.start_both(drop=0.005, seed=6)
        with made.connection() as marked, made.connection(0) as plain, made.connection(0x2B) as congested:
            for _ in range(2):
                assert transfer(*marked, values.tobytes()) == values.tobytes()
                assert transfer(*plain, data) == data
                assert transfer(*congested, values.tobytes()) == values.tobytes()
        assert one.counts()["to_link"]["compressed"] >= 4 * payload_nbytes(values) // 1448 * 0.9


def test_marked_and_other_streams_share_the_link(call: Call) -> None:
    call(_mixed)


def _answer_unmarked() -> None:
    values = gradients(100_000)
    with bed() as made:
        one, other = made.start_both()
        with made.connection(0x28, answer_tos=0) as (client, accepted):
            assert transfer(client, accepted, values.tobytes()) != values.tobytes()
            assert transfer(accepted, client, values.tobytes()) == values.tobytes()
        assert one.counts()["to_link"]["compressed"] > 0
        assert other.counts()["to_link"]["compressed"] == 0


def test_each_direction_is_marked_for_itself(call: Call) -> None:
    call(_answer_unmarked)


def _malformed() -> None:
    values = projected(gradients(100_000))
    with bed() as made:
        _, other = made.start_both()
        with inside(made.place["a"]):
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        raw.bind(("link", 0))
        random = np.random.default_rng(7)
        with raw, made.connection() as (client, accepted):
            header = bytes.fromhex("45280400000040004 0fd0000".replace(" ", "")) + bytes(
                [10, 9, 0, 1, 10, 9, 0, 2]
            )
            for size in range(0, 1000, 20):
                raw.send(bytes(12) + b"\x08\x00" + header + random.bytes(size))
            assert transfer(client, accepted, values.tobytes()) == values.tobytes()
        assert other.counts()["to_host"]["malformed"] == 50


def test_malformed_packets_are_dropped_and_counted(call: Call) -> None:
    call(_malformed)


def _refusals() -> list[str]:
    told = []
    with bed() as made, inside(made.place["b"]):
        ip(made.place["b"], "link add name wide mtu 9000 type veth peer name other")
        for names in (("host", "host"), ("host", "nowhere"), ("lo", "link"), ("host", "wide")):
            with pytest.raises(NicError) as caught:
                Nic(*names, Settings(SPEC))
            told.append(str(caught.value))
        card = made.start("b")
        card.check()
        ip(made.place["b"], "link del dev host")
        with pytest.raises(NicError, match="the interface 'host' of the NIC no longer exists"):
            card.check()
    return told


def test_interfaces_that_do_not_fit_are_refused(call: Call) -> None:
    same, missing, kind, mtu = call(_refusals)
    assert same == "expected two different interfaces, got 'host' twice; pass the host's and the link's"
    assert missing.startswith("expected one of the interfaces lo, ")
    assert kind == "expected an Ethernet interface, got 'lo'; pass another interface"
    assert mtu.startswith("expected two interfaces of the same MTU, got 1500 for 'host' and 9000 for 'wide'")


def _nothing_stays() -> None:
    with bed() as made:
        one, _ = made.start_both()
        with inside(made.place["a"]):
            with open("/proc/net/packet", encoding="ascii") as file:
                assert len(file.readlines()) == 3
            one.close()
            one.close()
            with open("/proc/net/packet", encoding="ascii") as file:
                assert len(file.readlines()) == 1
        assert one.counts()["to_link"]["frames_in"] == 0


def test_a_closed_nic_leaves_nothing_behind(call: Call) -> None:
    call(_nothing_stays)
