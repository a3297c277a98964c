from __future__ import annotations

import pytest

from gradwire.errors import GradwireError
from gradwire.experiments.papers.jobs import Training, train


def test_runs_are_trained_by_processes() -> None:
    found = train(Training(("sync:truncate:16",), model="cnn", max_steps=2))
    (row,) = found
    assert row["steps"] == 2
    assert 0 <= row["accuracy"] <= 1
    assert 1.9 < row["raw_nbytes"] / row["wire_nbytes"] < 2
    assert row["step_s"] >= row["compute_s"] > 0


def test_a_training_that_cannot_be_is_refused_before_processes_start() -> None:
    with pytest.raises(GradwireError, match="a run is written"):
        train(Training(("fast",)))
