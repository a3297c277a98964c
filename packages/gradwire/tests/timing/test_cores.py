from __future__ import annotations

from gradwire.timing.streams import Cores


def test_cores_work_side_by_side_and_then_one_waits() -> None:
    cores = Cores(2)
    assert [cores.take(0.0, 1.0) for _ in range(3)] == [1.0, 1.0, 2.0]
    assert cores.take(5.0, 0.0) == 5.0
