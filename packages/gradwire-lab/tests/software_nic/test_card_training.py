"""Training over marked connections while NICs fail or come and lines change: nobody gets other weights."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from gradwire import DSync, Plan, parse
from gradwire.errors import ExchangeError
from gradwire.links import Link
from support.beds import needs_namespaces
from support.meshes import linked
from support.nic_bed import SPEC, Bed, bed, ip, transfer
from support.ranks import run_ranks

pytestmark = [pytest.mark.processes, needs_namespaces]
Call = Callable[..., Any]
STEPS, AT = 8, 3
"""How many steps are taken, and the one during which something happens."""
TIMEOUT_S = 20.0


def train(link: Link, plan: Plan, act: Callable[[], None]) -> tuple[list[str], str]:
    """Return hashes of the weights after every step, and why there are not more."""
    generator = torch.Generator().manual_seed(7 + link.rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64))
    with torch.no_grad():
        for number, weights in enumerate(model.parameters()):
            weights.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(number))
    method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), plan, group=link)
    hashes: list[str] = []
    for step in range(STEPS):
        if (link.rank, step) == (0, AT):
            act()
        x, failure = torch.randn(16, 64, generator=generator), ""
        try:
            method.step(lambda x=x: (model(x) - x.roll(1, 1)).square().mean())  # type: ignore[misc]
        except ExchangeError as error:
            failure = str(error)
        data = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        hashes.append(hashlib.sha256(data).hexdigest())
        if failure:
            return hashes, failure
    return hashes, ""


def nothing() -> None:
    """Let nothing happen."""


def in_software() -> list[str]:
    """Return the hashes that the codec gives without marked connections, NICs, or sockets."""
    one, other = run_ranks(2, train, Plan(parse(SPEC)), nothing)
    hashes: list[str] = one[0]
    assert one == other
    assert len({*hashes}) == STEPS
    return hashes


@contextmanager
def linked_hosts(made: Bed, timeout_s: float) -> Iterator[Sequence[Link]]:
    """Yield the links of ranks 0 and 1, on hosts a and b."""
    with made.connection(0) as plain, made.connection() as marked:
        meshes = [[{1: a}, {0: b}] for a, b in (plain, marked)]
        yield linked(meshes[0], timeout_s, meshes[1])


def trained(
    made: Bed, act: Callable[[], None] = nothing, timeout_s: float = TIMEOUT_S
) -> list[tuple[list[str], str]]:
    """Return what both ranks have trained, while something happens in the middle of it."""
    with linked_hosts(made, timeout_s) as links:
        return run_ranks(2, train, Plan(offload=SPEC), act, links=links)


def check(found: list[tuple[list[str], str]]) -> None:
    """All ranks took all steps, with the weights of the codec in software after each."""
    wanted = in_software()
    for hashes, reason in found:
        assert not reason
        assert hashes == wanted


def _faults(settings: dict[str, float]) -> None:
    data = np.random.default_rng(8).bytes(300_000)
    with bed() as made:
        one, other = made.start_both(SPEC, seed=5, **settings)
        with made.connection(0) as plain:
            heard: list[bytes] = []
            talk = threading.Thread(target=lambda: heard.append(transfer(*plain, data)), daemon=True)
            talk.start()
            check(trained(made))
            talk.join(TIMEOUT_S)
        sent, came = one.counts()["to_link"], other.counts()["to_host"]
    assert heard == [data]
    assert sent["compressed"] > 0
    assert came["malformed"] == 0
    assert (sent["faults_dropped"] > 0) == ("drop" in settings)
    assert (sent["faults_reordered"] > 0) == ("reorder" in settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"drop": 0.02},
        {"reorder": 0.05},
        {"delay_s": 0.002},
        {"drop": 0.01, "reorder": 0.02, "merge": False},
    ],
    ids=str,
)
def test_lost_late_and_reordered_packets_beside_other_traffic(call: Call, settings: dict[str, float]) -> None:
    call(_faults, settings)


def _change_mtu(mtu: int) -> None:
    with bed() as made:
        one, _ = made.start_both()

        def change() -> None:
            for side in ("a", "b"):
                ip(made.host[side], f"link set dev eth0 mtu {mtu}")
                ip(made.place[side], f"link set dev host mtu {mtu}", f"link set dev link mtu {mtu}")

        check(trained(made, change))
        assert one.counts()["to_link"]["compressed"] > 0


@pytest.mark.parametrize("mtu", [1300, 9000])
def test_the_mtu_changes_in_mid_run(call: Call, mtu: int) -> None:
    call(_change_mtu, mtu)


def _replace(spec: str) -> None:
    with bed() as made:
        made.start_both()
        before = made.cards["b"]

        def replace() -> None:
            before.close()
            made.start("b", spec)

        check(trained(made, replace))
        counts = made.cards["b"].counts()
    assert before.counts()["to_link"]["compressed"] > 0
    assert counts["to_link"]["compressed"] == 0
    assert counts["to_link"]["raw_unseen"] > 0
    assert (counts["to_host"]["restored"] > 0) == (spec == SPEC)
    assert (counts["to_host"]["malformed"] > 0) == (spec != SPEC)


@pytest.mark.parametrize("spec", [SPEC, "inceptionn:2^-9"])
def test_after_a_nic_was_replaced_training_goes_on_uncompressed(call: Call, spec: str) -> None:
    call(_replace, spec)


def _begin_without() -> None:
    with bed() as made:
        made.start("a")
        bridge(made, "b")

        def start() -> None:
            ip(made.place["b"], "link del dev past")
            made.start("b")

        check(trained(made, start))
        counts = [made.cards[side].counts() for side in ("a", "b")]
        assert {each["to_link"]["compressed"] for each in counts} == {0}
        assert counts[1]["to_link"]["raw_unseen"] > 0
        check(trained(made))
        assert made.cards["b"].counts()["to_link"]["compressed"] > 0


def bridge(made: Bed, side: str) -> None:
    """Let the frames of a host pass without a NIC, through a bridge named ``past``."""
    ip(
        made.place[side],
        "link add name past type bridge",
        *(f"link set dev {name} master past" for name in ("host", "link")),
        "link set dev past addrgenmode none up",
    )


def test_a_nic_that_starts_in_mid_run_compresses_what_connects_after_it(call: Call) -> None:
    call(_begin_without)


def _kill() -> None:
    wanted = in_software()
    with bed() as made:
        made.start_both()
        found = trained(made, made.cards["b"].close, timeout_s=1.5)
    for rank, (hashes, reason) in enumerate(found):
        assert hashes == [*wanted[:AT], wanted[AT - 1]], "of the last whole step"
        assert f"rank {rank}" in reason
        assert f"rank {1 - rank}" in reason
        assert "step" in reason
        assert "no progress within 1.5 s" in reason


def test_without_its_nic_a_host_is_cut_off_and_both_ranks_say_where(call: Call) -> None:
    call(_kill)
