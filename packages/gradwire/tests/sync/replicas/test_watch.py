from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.sync.replicas.compare import ReplicaWatch, crc32c_of, replica_hashes


def test_the_first_step_is_checked_and_every_nth_after_it() -> None:
    assert [steps for steps in range(8) if ReplicaWatch(3).is_due(steps)] == [0, 3, 6]
    assert [steps for steps in range(3) if ReplicaWatch(1).is_due(steps)] == [0, 1, 2]
    assert not any(ReplicaWatch().is_due(steps) for steps in range(3))


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "3"])
def test_another_number_of_steps_is_refused(every: Any) -> None:
    with pytest.raises(
        SpecError, match="expected a whole number of at least 1, or None, for check_replicas_every"
    ):
        ReplicaWatch(every)


def test_hashes_are_of_four_bytes_and_see_the_optimizer_only_where_there_is_one() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone, both = ReplicaWatch(1), ReplicaWatch(1, optimizer)

    def hashes(watch: ReplicaWatch) -> dict[str, bytes]:
        return replica_hashes(model, watch.optimizer, crc32c_of)

    before = hashes(alone), hashes(both)
    assert [len(each) for each in before[1].values()] == [4, 4]
    optimizer.param_groups[0]["lr"] = 0.2
    assert hashes(alone) == before[0]
    assert hashes(both)["weights"] == before[1]["weights"]
    assert hashes(both)["optimizer states"] != before[1]["optimizer states"]
    assert alone.facts != both.facts
