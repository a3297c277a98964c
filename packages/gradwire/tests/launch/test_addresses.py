"""Where a rank listens: at a selected interface, on the route to the store's host, or at its host's name."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.errors import LinkError
from gradwire.launch import addresses
from gradwire.launch.addresses import (
    OTHER_VARIABLE,
    VARIABLE,
    choice_towards,
    interface_of,
    is_loopback,
    outward_address,
    own_choice,
    remedy,
    route_to,
    selection,
)

FAST, SLOW, MANAGEMENT = "10.1.0.5", "10.2.0.5", "192.168.0.5"
INTERFACES = {
    "lo": "127.0.0.1",
    "eth0": MANAGEMENT,
    "eth1": FAST,
    "eth10": SLOW,
    "docker0": "",
    "ib0": "fd00::5",
}


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the host several interfaces; routes lead to the network with the same first two numbers."""
    networks = {address.rpartition(".")[0]: address for address in INTERFACES.values() if "." in address}
    monkeypatch.setattr(addresses, "interfaces", lambda: tuple(INTERFACES))
    monkeypatch.setattr(addresses, "_addresses_of", lambda name: list(filter(None, [INTERFACES.get(name)])))
    monkeypatch.setattr(addresses, "route_to", lambda host: networks.get(host.rpartition(".")[0], ""))


def test_an_interface_with_ipv6_alone_has_its_global_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "if_inet6"
    rows = (
        "fe800000000000000000000000000001 02 40 20 80 six0",
        "20010db8000000000000000000000001 02 40 00 80 six0",
    )
    table.write_text("".join(f"{row}\n" for row in rows))
    monkeypatch.setattr(addresses, "_IPV6", table)
    assert own_choice({VARIABLE: "six0"}) == "2001:db8::1"
    assert own_choice({OTHER_VARIABLE: "lo"}, "::1") == "127.0.0.1"


def test_without_a_store_the_hosts_own_address_is_taken_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert own_choice({VARIABLE: "lo,eth9"}) == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.host.invalid")
    assert own_choice({}) == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "::1")
    assert own_choice({}) in ("::1", "127.0.0.1")


def test_an_interface_without_an_address_is_refused_with_those_that_are_here() -> None:
    present = ", ".join(name for _, name in socket.if_nameindex())
    with pytest.raises(LinkError) as caught:
        own_choice({VARIABLE: "nope0,lo"}, "127.0.0.1")
    assert str(caught.value) == (
        f"GLOO_SOCKET_IFNAME: expected an interface with an address, got 'nope0'; choose one of: {present}"
    )


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("eth", ("eth0", "eth1", "eth10")),
        ("eth1", ("eth1", "eth10")),
        ("=eth1", ("eth1",)),
        ("=eth10,eth0", ("eth0", "eth10")),
        ("ib,eth0", ("eth0", "ib0")),
        ("^eth1,docker", ("eth0", "ib0")),
        ("^=eth1", ("eth0", "eth10", "ib0")),
        ("lo", ("lo",)),
    ],
)
def test_nccls_variable_selects_as_nccl_does(text: str, names: tuple[str, ...]) -> None:
    selected = selection({OTHER_VARIABLE: text})
    assert selected is not None
    assert selected.names == names
    both = selection({OTHER_VARIABLE: text, VARIABLE: "docker0"})
    assert both is not None
    assert (both.variable, both.names) == (VARIABLE, ("docker0",))


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "wlan",
            "expected an interface with an address, got 'wlan'; set this variable or GLOO_SOCKET_IFNAME to",
        ),
        ("docker0", "expected an interface with an address, got 'docker0'; set this variable"),
        ("^eth,ib,docker", "expected an interface with an address, got '^eth,ib,docker'; set this variable"),
        ("eth0:1", "exclusions), got 'eth0:1'; write such a list, or set GLOO_SOCKET_IFNAME instead"),
        ("==eth0", "exclusions), got '==eth0'"),
    ],
)
def test_a_text_that_selects_nothing_is_an_error_that_says_what_to_do(text: str, problem: str) -> None:
    with pytest.raises(LinkError) as caught:
        own_choice({OTHER_VARIABLE: text}, "10.1.0.1")
    assert str(caught.value).startswith(f"{OTHER_VARIABLE}: expected ")
    assert problem in str(caught.value)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("variables", "store_host", "address"),
    [
        ({}, "10.1.0.1", FAST),
        ({}, "10.2.0.1", SLOW),
        ({}, "127.0.0.1", ""),
        ({}, "unknown", ""),
        ({VARIABLE: "eth0,eth1"}, "10.1.0.1", MANAGEMENT),
        ({VARIABLE: "eth0"}, "127.0.0.1", MANAGEMENT),
        ({OTHER_VARIABLE: "=eth10"}, "127.0.0.1", SLOW),
        ({OTHER_VARIABLE: "^docker0"}, "10.2.0.1", SLOW),
        ({OTHER_VARIABLE: "^eth0"}, "192.168.0.1", FAST),
        ({OTHER_VARIABLE: "eth"}, "127.0.0.1", ""),
        ({OTHER_VARIABLE: "eth1"}, "", FAST),
    ],
)
def test_a_selected_interface_comes_before_the_route(
    variables: dict[str, str], store_host: str, address: str
) -> None:
    assert own_choice(variables, store_host) == address


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("variables", "addresses_of_lanes"),
    [
        ({VARIABLE: "eth1,eth10"}, [FAST, SLOW, FAST, SLOW]),
        ({VARIABLE: "eth10,eth1,eth0"}, [SLOW, FAST, MANAGEMENT, SLOW]),
        ({VARIABLE: "eth1"}, [FAST, FAST]),
        ({}, [SLOW, SLOW]),
        ({OTHER_VARIABLE: "^docker0"}, [SLOW, SLOW]),
        ({OTHER_VARIABLE: "=eth1"}, [FAST, FAST]),
    ],
)
def test_lanes_take_turns_at_the_interfaces_of_the_list(
    variables: dict[str, str], addresses_of_lanes: list[str]
) -> None:
    found = [own_choice(variables, "10.2.0.1", lane) for lane in range(len(addresses_of_lanes))]
    assert found == addresses_of_lanes


@pytest.mark.usefixtures("several")
def test_a_lane_whose_interface_has_no_address_names_it() -> None:
    assert own_choice({VARIABLE: "eth1,docker0"}, lane=2) == FAST
    with pytest.raises(LinkError, match="with an address, got 'docker0'; choose one of: lo, "):
        own_choice({VARIABLE: "eth1,docker0"}, lane=1)


@pytest.mark.usefixtures("several")
def test_on_the_stores_host_another_hosts_rank_leads_to_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ["127.0.0.1", "172.16.0.1", "10.2.0.9", "10.1.0.9"]
    assert choice_towards(others, {}) == SLOW
    assert choice_towards(others, {OTHER_VARIABLE: "^eth10"}) == FAST
    assert choice_towards(others, {OTHER_VARIABLE: "eth0,ib0"}) == MANAGEMENT
    monkeypatch.setattr(addresses, "address_of_name", lambda: "127.0.1.1")
    assert choice_towards(["127.0.0.1"], {}) == "127.0.1.1"


class HereAlone(socket.socket):
    """Binds wherever an address is this machine's, of which two are made up."""

    def bind(self, place: tuple[str, int]) -> None:  # type: ignore[override]
        if place[0] not in ("fe80::1%eth0", "2001:db8::5"):
            raise OSError("another machine's")

    def connect(self, _: tuple[str, int]) -> None:  # type: ignore[override]
        if self.family == socket.AF_INET6:
            raise OSError("no route")


def answer(*places: str) -> Callable[..., object]:
    families = {True: socket.AF_INET6, False: socket.AF_INET}
    found = [(families[":" in each], socket.SOCK_DGRAM, 0, "", (each, 9)) for each in places]
    return lambda *_, **__: found


def test_an_address_is_passed_over_that_peers_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answer("203.0.113.9", "fe80::1%eth0", "2001:db8::5"))
    monkeypatch.setattr(socket, "socket", HereAlone)
    assert addresses.address_of_name() == "2001:db8::5"


def test_the_route_is_that_of_a_name_whatever_its_family(monkeypatch: pytest.MonkeyPatch) -> None:
    assert route_to("127.0.0.1") == "127.0.0.1"
    assert route_to("no.such.host.invalid") == ""
    monkeypatch.setattr(socket, "getaddrinfo", answer("::1", "127.0.0.1"))
    assert route_to("both") == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", answer("::1"))
    assert route_to("six") in ("::1", "")  # "" on a machine without IPv6
    monkeypatch.setattr(socket, "socket", HereAlone)
    assert route_to("six") == ""


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") == ""


@pytest.mark.usefixtures("several")
def test_without_a_store_the_default_route_stands_in_for_a_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "address_of_name", lambda: "127.0.1.1")
    assert outward_address({}) == "127.0.1.1"  # no default route
    monkeypatch.setattr(addresses, "route_to", lambda host: SLOW if host == "192.0.2.1" else "")
    assert outward_address({}) == SLOW
    assert outward_address({VARIABLE: "lo"}) == "127.0.0.1"
    monkeypatch.setattr(addresses, "address_of_name", lambda: MANAGEMENT)
    assert outward_address({}) == MANAGEMENT


def test_the_remedy_names_the_variable_and_what_a_loopback_address_is() -> None:
    for address in ("127.0.0.1", "127.0.1.1", "::1"):
        assert is_loopback(address)
        assert f"other hosts cannot reach the loopback address {address}" in remedy(address)
        assert f"set {VARIABLE} on each host to the interface" in remedy(address)
    for address in ("10.0.0.1", "2001:db8::1"):
        assert not is_loopback(address)
        assert remedy(address) == (
            f"on the host with {address}, set {VARIABLE} to an interface that the other hosts reach, and "
            "allow connections in the firewall"
        )
