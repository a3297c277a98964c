"""The sockets of a link: their congestion control at both ends, and the local address of connections."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.errors import LinkError
from gradwire.launch.addresses import VARIABLE
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.options import CONGESTION, SocketOptions, congestion, leaves_by
from support.endpoints import names

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text(encoding="ascii").split()


def control_of(connection: socket.socket) -> str:
    """Return the congestion control that the kernel uses for a connection."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@pytest.fixture(autouse=True)
def _on_the_loopback_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "lo")


def may_choose(name: str) -> bool:
    try:
        with socket.socket() as trying:
            trying.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError:
        return False
    return True


@pytest.mark.parametrize("tos", [0, 0x28])
@pytest.mark.parametrize("name", ["reno", "cubic"])
def test_all_connections_have_the_chosen_congestion_control_at_both_ends(
    name: str, tos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not may_choose(name):
        pytest.skip(f"this user may not choose {name} of this kernel")
    monkeypatch.setenv(CONGESTION, name)
    store = HashStore()
    with ThreadPoolExecutor(3) as pool:
        meeting = [pool.submit(connect_ranks, store, r, names(3), 10.0, tos=tos) for r in range(3)]
        found = [each for done in meeting for each in done.result(20).values()]
    assert [control_of(each) for each in found] == [name] * 6
    for each in found:
        each.close()


@pytest.mark.parametrize("world", [1, 2])
def test_a_name_that_the_kernel_does_not_have_is_refused_with_its_list(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONGESTION, "nosuch")
    with pytest.raises(LinkError) as caught:
        connect_ranks(HashStore(), 0, names(world), 1.0)
    assert str(caught.value) == (
        f"GRADWIRE_TCP_CONGESTION: expected a congestion control of this kernel ({' '.join(AVAILABLE)}), got "
        "'nosuch'; choose one of these, or load the kernel module of 'nosuch'"
    )


def test_a_name_that_only_root_may_choose_is_refused_with_the_allowed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Guarded(socket.socket):
        def setsockopt(self, *_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("socket.socket", Guarded)
    with pytest.raises(LinkError) as caught:
        congestion({CONGESTION: "cubic"})
    assert f"that this user may choose ({' '.join(ALLOWED)}), got 'cubic'; choose one of" in str(caught.value)


def test_without_a_name_the_kernel_chooses() -> None:
    assert congestion({}) == congestion({CONGESTION: ""}) == ""


def test_connections_leave_by_the_lanes_address_if_several_interfaces_are_named() -> None:
    assert leaves_by({VARIABLE: "eth0,eth1"}, "10.0.0.1") == "10.0.0.1"
    assert leaves_by({VARIABLE: "eth0"}, "10.0.0.1") == leaves_by({}, "10.0.0.1") == ""
    made = SocketOptions(leaves_by="127.0.0.2")
    listening = made.listening_at("127.0.0.3", 1)
    with listening, made.connecting_to("127.0.0.3", listening.getsockname()[1]) as connection:
        assert connection.getsockname()[0] == "127.0.0.2"


def test_an_address_of_another_family_does_not_bind_a_connection() -> None:
    made, listening = SocketOptions(leaves_by="fd00::1"), SocketOptions().listening_at("127.0.0.1", 1)
    with listening, made.connecting_to("127.0.0.1", listening.getsockname()[1]) as connection:
        assert connection.getsockname()[0] == "127.0.0.1"
