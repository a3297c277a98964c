from __future__ import annotations

import socket

import pytest

from gradwire.doctor.software import Interfaces, check_gloo, check_interfaces, find_interfaces
from gradwire.launch import addresses


def test_the_named_interface_is_found_with_its_address() -> None:
    found = find_interfaces({"GLOO_SOCKET_IFNAME": "lo"})
    assert (found.named, found.addresses) == (("lo",), ("127.0.0.1",))
    assert found.is_loopback
    assert list(found.present) == [name for _, name in socket.if_nameindex()]


def test_without_a_name_the_address_is_that_of_the_route_to_the_store() -> None:
    alone = find_interfaces({})
    assert (alone.named, alone.addresses, alone.is_loopback) == ((), (), False)
    assert check_interfaces(alone).detail == "the interface towards MASTER_ADDR, which is not set here"
    here = find_interfaces({"MASTER_ADDR": "127.0.0.1"})
    assert (here.addresses, here.is_loopback) == ((), False)
    assert check_interfaces(here).detail == (
        "the interface towards ranks on other machines: MASTER_ADDR (127.0.0.1) is this machine"
    )
    away = Interfaces("", (), ("10.0.0.2",), ("lo", "eth0"), "node0")
    assert check_interfaces(away).detail == "10.0.0.2 (on the route to MASTER_ADDR, node0)"


def test_a_variable_that_selects_no_interface_fails() -> None:
    finding = check_interfaces(find_interfaces({"NCCL_SOCKET_IFNAME": "=nope0"}))
    assert finding.result == "FAIL"
    assert finding.detail.startswith(
        "NCCL_SOCKET_IFNAME: expected an interface with an address, got '=nope0'; "
    )


def test_an_interface_that_is_not_here_fails_and_names_those_that_are() -> None:
    found = find_interfaces({"GLOO_SOCKET_IFNAME": "nope0"})
    finding = check_interfaces(found)
    assert finding.result == "FAIL"
    assert "got 'nope0'; choose one of: " in finding.detail


def test_an_interface_without_an_address_fails() -> None:
    found = Interfaces("GLOO_SOCKET_IFNAME", ("eth0", "eth1"), ("10.0.0.1", ""), ("lo", "eth0", "eth1"))
    finding = check_interfaces(found)
    assert finding.result == "FAIL"
    assert finding.detail.startswith("GLOO_SOCKET_IFNAME: ")
    assert "with an address, got eth1; bring the interface up, or choose one of: " in finding.detail


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_a_selected_loopback_address_comes_with_what_to_set_for_more_machines(variable: str) -> None:
    finding = check_interfaces(find_interfaces({variable: "lo"}))
    assert finding.result == "ok"
    assert finding.detail.startswith(
        f"127.0.0.1 ({variable} selects lo): only ranks of this machine can reach this address; for several "
        f"machines, set {variable} to one of: "
    )


def test_gloo_is_tried() -> None:
    assert check_gloo({"GLOO_SOCKET_IFNAME": "lo"}).result == "ok"
    finding = check_gloo({"GLOO_SOCKET_IFNAME": "nope0"})
    assert finding.result == "FAIL"
    assert "nope0" in finding.detail
    assert "\n" not in finding.detail


def test_a_script_that_gloo_would_keep_to_this_machine_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "address_of_name", lambda: "127.0.1.1")
    monkeypatch.setattr(addresses, "interfaces", lambda: ("lo", "eth0", "eth1"))
    finding = check_gloo({})
    assert finding.result == "warn"
    assert finding.detail.startswith(
        "a script's groups of the backend gloo listen at 127.0.1.1 (by the host's"
    )
    assert finding.detail.endswith("span machines, set GLOO_SOCKET_IFNAME to one of: eth0, eth1")
    monkeypatch.setattr(addresses, "address_of_name", lambda: "10.0.0.1")
    assert check_gloo({}).result == "ok"
