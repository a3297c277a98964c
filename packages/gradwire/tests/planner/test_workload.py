from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire.planner.candidates import MOST_PIECES, Workload
from gradwire.sync.flat.gradients import cut

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any)


@given(COUNTS, st.sampled_from([None, 4, 40, 100, 400]))
def test_buckets_are_cut_where_training_cuts_them(counts: list[int], bucket_nbytes: int | None) -> None:
    parts = Workload(tuple(counts)).parts(bucket_nbytes)
    assert [part.count for part in parts] == [bucket.count for bucket in cut(counts, bucket_nbytes)]


def test_buckets_are_ready_in_proportion_to_their_bytes_and_the_last_parameter_first() -> None:
    parts = Workload((60, 30, 10), backward_s=2.0).parts(4)
    assert [part.count for part in parts] == [10, 30, 60]
    assert [part.ready_s for part in parts] == pytest.approx([0.2, 0.8, 2.0])


@pytest.mark.parametrize("count", [1, 1000, 10**6, 10**9, 175 * 10**9])
def test_a_model_of_which_only_the_size_is_known_is_cut_into_few_pieces(count: int) -> None:
    workload = Workload.of_count(count)
    assert workload.count == count
    assert workload.nbytes == 4 * count
    assert len(workload.counts) <= MOST_PIECES


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Workload(()), "expected parameter sizes"),
        (lambda: Workload((0, 0)), "expected parameter sizes"),
        (lambda: Workload((1, -1)), "expected parameter sizes"),
        (lambda: Workload.of_count(0), "of at least 1"),
        (lambda: Workload((1,), forward_s=-1.0), "for forward_s in a training step, got -1"),
        (lambda: Workload((1,), backward_s=float("nan")), "for backward_s in a training step, got nan"),
    ],
)
def test_what_cannot_be_trained_is_refused(make: object, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        make()  # type: ignore[operator]
