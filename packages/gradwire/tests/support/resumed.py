"""What a run in another package's loop must show after it was resumed."""

from __future__ import annotations

from typing import Any


def check_resumed(seen: list[dict[str, Any]]) -> None:
    """All ranks have equal weights, a resumed run has the uninterrupted one's, and top-k was on the wire."""
    assert seen[0]["whole"] == seen[1]["whole"]
    assert all(rank["resumed"] == rank["whole"] for rank in seen)
    for rank in seen:
        assert 0 < 2 * rank["counted"]["wire"] < rank["counted"]["raw"], "a tenth of the values, with indices"
        assert "AttachError: " in rank["refused"]
        assert "for gradwire, got a Sequential without one" in rank["refused"]
        assert "StateError: rank" in rank["swapped"]
        assert "StateError: expected bit-identical replicas, but the weights of rank 1" in rank["apart"]
        assert "expected the state of this rank" in rank["swapped"]
