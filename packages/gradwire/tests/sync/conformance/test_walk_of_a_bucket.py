"""The path of a bucket is the list in CONTRIBUTING, from DDP's hook to the socket and back.

Each rank records a warm step of two ranks over sockets, on all threads, from the call of DDP's hook until the
bucket's future is complete. The path are the functions under way where the bucket passes from one thread to the
other, into the kernel, out of it, or back to DDP. Each counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support import walk_ranks
from support.project import ROOT

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("spec", ["fp8", "identity"])
def test_a_bucket_takes_the_path_that_contributing_lists(
    run_processes: Callable[..., list[Any]], spec: str
) -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text().partition("path of one bucket")[2].splitlines()
    listed = [" ".join(line.split()[:2]) for line in lines if line.startswith("    ") and ".py " in line]
    assert len(listed) <= 15
    for path in run_processes(2, walk_ranks.walk, spec, alone=True):
        assert path == listed
