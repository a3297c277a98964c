from __future__ import annotations

import socket

from gradwire.doctor.software import Interfaces, check_gloo, check_interfaces, find_interfaces


def test_the_named_interface_is_found_with_its_address() -> None:
    found = find_interfaces({"GLOO_SOCKET_IFNAME": "lo"})
    assert (found.named, found.addresses) == (("lo",), ("127.0.0.1",))
    assert found.is_loopback
    assert list(found.present) == [name for _, name in socket.if_nameindex()]


def test_without_a_name_the_address_is_one_that_a_socket_can_have() -> None:
    (address,) = find_interfaces({}).addresses
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as trying:
        trying.bind((address, 0))


def test_an_interface_that_is_not_here_fails_and_names_those_that_are() -> None:
    found = find_interfaces({"GLOO_SOCKET_IFNAME": "nope0"})
    finding = check_interfaces(found)
    assert finding.result == "FAIL"
    assert "got 'nope0'; choose one of: " in finding.detail


def test_an_interface_without_an_address_fails() -> None:
    finding = check_interfaces(Interfaces(("eth0", "eth1"), ("10.0.0.1", ""), ("lo", "eth0", "eth1")))
    assert finding.result == "FAIL"
    assert "with an address, got eth1; check that the interface is up" in finding.detail


def test_a_loopback_address_comes_with_what_to_set_for_more_machines() -> None:
    asked_for = check_interfaces(Interfaces(("lo",), ("127.0.0.1",), ("lo", "eth0")))
    assert asked_for.result == "ok"
    finding = check_interfaces(Interfaces((), ("127.0.1.1",), ("lo", "eth0", "eth1")))
    assert finding.result == "warn"
    assert finding.detail.startswith(
        "127.0.1.1 (by the host's name): only ranks of this machine can reach this address"
    )
    assert finding.detail.endswith("set GLOO_SOCKET_IFNAME to one of: eth0, eth1")
    assert "eth1" not in check_interfaces(Interfaces((), ("10.0.0.1",), ("lo", "eth1"))).detail


def test_gloo_is_tried() -> None:
    assert check_gloo(("lo",)).result == "ok"
    finding = check_gloo(("nope0",))
    assert finding.result == "FAIL"
    assert "nope0" in finding.detail
    assert "\n" not in finding.detail
