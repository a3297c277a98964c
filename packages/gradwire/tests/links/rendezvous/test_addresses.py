"""Where this machine listens: at the interface that is named, else at an address of its own."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gradwire.errors import LinkError
from gradwire.links.rendezvous import addresses
from gradwire.links.rendezvous.addresses import VARIABLE, is_loopback, listening_address, remedy


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
    assert listening_address({VARIABLE: "six0"}) == "2001:db8::1"


def test_without_a_name_the_hosts_own_address_is_taken_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert listening_address({VARIABLE: "lo,eth9"}) == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.host.invalid")
    assert listening_address({}) == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "::1")
    assert listening_address({}) in ("::1", "127.0.0.1")


def test_an_interface_without_an_address_is_refused_with_those_that_are_here() -> None:
    present = ", ".join(name for _, name in socket.if_nameindex())
    with pytest.raises(LinkError) as caught:
        listening_address({VARIABLE: "nope0,lo"})
    assert str(caught.value) == (
        f"GLOO_SOCKET_IFNAME: expected an interface with an address, got 'nope0'; choose one of: {present}"
    )


class HereAlone(socket.socket):
    """Binds wherever an address is this machine's, of which two are made up."""

    def bind(self, place: tuple[str, int]) -> None:  # type: ignore[override]
        if place[0] not in ("fe80::1%eth0", "2001:db8::5"):
            raise OSError("another machine's")


def test_an_address_is_passed_over_that_peers_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["203.0.113.9", "fe80::1%eth0", "2001:db8::5"]
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, 0)) for place in places]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    monkeypatch.setattr(socket, "socket", HereAlone)
    assert addresses.own_address() == "2001:db8::5"


def test_the_remedy_names_the_variable_and_what_a_loopback_address_is() -> None:
    for address in ("127.0.0.1", "127.0.1.1", "::1"):
        assert is_loopback(address)
        assert f"other hosts cannot reach the loopback address {address}" in remedy(address)
        assert f"set {VARIABLE} on each host to the interface" in remedy(address)
    for address in ("10.0.0.1", "2001:db8::1"):
        assert not is_loopback(address)
        assert remedy(address) == f"check {VARIABLE} and the firewall on the host with {address}"
