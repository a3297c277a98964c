"""Lanes on hosts with two networks: the script of the page on several networks, at two bridges."""

from __future__ import annotations

import pytest

from support.beds import needs_namespaces
from support.bridged_hosts import address, debian, run_hosts
from support.project import ROOT
from support.snippets import FENCE

pytestmark = [pytest.mark.processes, needs_namespaces]
HOSTS = 2
PAGE = (ROOT / "docs/how-to/several_nics.md").read_text(encoding="utf-8")
SCRIPT = next(text for language, text in FENCE.findall(PAGE) if language == "python")
VARIABLE = "GLOO_SOCKET_IFNAME"
LISTED = f"export {VARIABLE}=eth0,eth1"

# Gloo's own traffic ends before ``attach`` returns, so that the counters have gradwire's bytes alone.
COUNTED = """
import hashlib, os
from pathlib import Path
import torch.distributed as dist
import gradwire

def counted():
    rows = [line.split() for line in Path("/proc/self/net/dev").read_text().splitlines()]
    found = {row[0].rstrip(":"): row[1:] for row in rows}
    return [int(found[name][column]) for name in ("eth0", "eth1") for column in (0, 8)]

def then_count(*given, **named):
    attached = attach(*given, **named)
    before[:] = counted()
    return attached

before, attach, gradwire.attach = [], gradwire.attach, then_count
for lanes in ("lanes=2", "lanes=1"):
    names = {"__name__": "__main__"}
    exec(compile(os.environ["SCRIPT"].replace("lanes=2", lanes), "several_nics.md", "exec"), names)
    counts = [now - then for now, then in zip(counted(), before)]
    digest = hashlib.sha256()
    for each in names["model"].parameters():
        digest.update(each.detach().numpy().tobytes())
    print("RESULT", digest.hexdigest(), *counts)
    dist.barrier()
    if lanes == "lanes=2":
        dist.init_process_group = lambda *_: None
"""
Trained = list[tuple[str, list[int]]]


def train(script: str) -> tuple[Trained, Trained]:
    """Return each host's digest of the weights, and the bytes in and out of eth0 and eth1.

    The first result is that of two lanes, and the second that of one lane.
    """
    variables = {"MASTER_ADDR": address(0), VARIABLE: LISTED.partition("=")[2], "SCRIPT": script}
    tables = [debian(host, HOSTS) for host in range(HOSTS)]
    both: Trained = []
    alone: Trained = []
    for code, output in run_hosts(["-c", COUNTED], tables, variables, networks=2, timeout_s=180.0):
        assert code == 0, output
        rows = [line.split()[1:] for line in output.splitlines() if line.startswith("RESULT")]
        for place, (digest, *counts) in zip((both, alone), rows, strict=True):
            place.append((digest, [int(each) for each in counts]))
    return both, alone


@pytest.mark.timeout(240)
def test_two_lanes_fill_two_networks_and_end_with_the_bits_of_one_lane() -> None:
    assert LISTED in PAGE
    assert "lanes=2" in SCRIPT
    both, alone = train(SCRIPT)
    assert len({digest for digest, _ in both + alone}) == 1
    for _, (first_in, first_out, second_in, second_out) in both:
        assert 0.8 < second_in / first_in < 1.25
        assert 0.8 < second_out / first_out < 1.25
    for _, (first_in, first_out, second_in, second_out) in alone:
        assert second_in < 0.05 * first_in
        assert second_out < 0.05 * first_out
    for (_, shared), (_, single) in zip(both, alone, strict=True):
        assert sum(shared) == pytest.approx(sum(single), rel=0.1)


@pytest.mark.timeout(240)
def test_a_lane_without_its_interface_is_an_error_that_lists_those_that_exist() -> None:
    program = SCRIPT.replace("import gradwire\n", "import gradwire\nimport os\n", 1)
    program = program.replace("attached =", f"os.environ['{VARIABLE}'] = 'eth0,eth7'\nattached =", 1)
    tables = [debian(host, HOSTS) for host in range(HOSTS)]
    variables = {"MASTER_ADDR": address(0), VARIABLE: "eth0,eth1"}
    for code, output in run_hosts(["-c", program], tables, variables, networks=2):
        assert code == 1
        assert f"{VARIABLE}: expected an interface with an address, got 'eth7'; choose one of: " in output
        assert "lo, eth0, eth1" in output


@pytest.mark.timeout(240)
def test_a_host_with_one_interface_uses_it_for_all_lanes() -> None:
    own = f"import os\nif dist.get_rank() == 1:\n    os.environ['{VARIABLE}'] = 'eth0'\n"
    both, alone = train(SCRIPT.replace("torch.manual_seed(0)\n", f"torch.manual_seed(0)\n{own}", 1))
    assert len({digest for digest, _ in both + alone}) == 1
    for _, counts in both:  # rank 1 connects to rank 0, which has an address in each network
        assert counts[2] > 0.8 * counts[0]
