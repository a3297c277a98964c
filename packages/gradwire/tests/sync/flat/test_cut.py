from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.sync.flat.gradients import Bucket, cut

COUNTS = st.lists(st.integers(0, 300), min_size=1, max_size=40)


def test_buckets_are_filled_from_the_end() -> None:
    assert cut([10, 20, 30, 40], 4 * 70) == [Bucket(30, 100, range(2, 4)), Bucket(0, 30, range(2))]


def test_without_a_limit_there_is_one_bucket() -> None:
    assert cut([10, 20, 30], None) == [Bucket(0, 60, range(3))]


def test_a_huge_parameter_is_alone() -> None:
    assert [bucket.parameters for bucket in cut([5, 900, 5, 5], 4 * 100)] == [
        range(2, 4),
        range(1, 2),
        range(1),
    ]


@pytest.mark.parametrize(("nbytes", "buckets"), [(36, 3), (40, 2), (56, 2), (60, 1)])
def test_a_limit_is_a_number_of_bytes_that_may_be_reached(nbytes: int, buckets: int) -> None:
    assert len(cut([5, 5, 5], nbytes)) == buckets


@given(COUNTS, st.integers(1, 1000).map(lambda floats: 4 * floats))
def test_every_parameter_is_in_one_bucket_and_none_could_hold_its_neighbour(
    counts: list[int], nbytes: int
) -> None:
    buckets = cut(counts, nbytes)
    numbers = [index for bucket in reversed(buckets) for index in bucket.parameters]
    assert numbers == list(range(len(counts)))
    assert buckets[0].stop == sum(counts)
    assert buckets[-1].start == 0
    for bucket, following in pairwise(buckets):
        assert bucket.start == following.stop
        one_more = bucket.count + counts[bucket.parameters[0] - 1]
        assert 4 * one_more > nbytes
    for bucket in buckets:
        assert bucket.count == sum(counts[index] for index in bucket.parameters)
        assert 4 * bucket.count <= nbytes or len(bucket.parameters) == 1


def test_a_view_is_the_buffer_itself() -> None:
    buffer = torch.arange(6.0)
    Bucket(2, 5, range(1)).view(buffer).zero_()
    assert buffer.tolist() == [0, 1, 0, 0, 0, 5]
