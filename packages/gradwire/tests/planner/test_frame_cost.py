from __future__ import annotations

import time

import pytest

from gradwire.errors import LinkError
from gradwire.planner import calibration as host
from gradwire.planner.calibration import measure_host


def test_frames_cost_something_but_not_the_world() -> None:
    started = time.process_time()
    found = measure_host(cores=3, ranks_per_machine=2)
    spent_s = time.process_time() - started
    assert (found.cores, found.ranks_per_machine) == (3, 2)
    assert 1e-6 < found.send_s + found.receive_s < spent_s
    assert min(found.send_s, found.receive_s, found.send_s_per_nbyte, found.beside_s_per_nbyte) >= 0
    assert found.beside_s_per_nbyte < 1e-7


def test_without_a_local_network_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_LOCAL", "192.0.2.1")
    with pytest.raises(LinkError, match="cannot measure the cost of frames over the loopback") as caught:
        measure_host(2, 1)
    assert "\n" not in str(caught.value)
