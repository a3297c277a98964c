from __future__ import annotations

import pytest

from gradwire.doctor.finding import Finding, any_failed, merge, name_ranks

GOOD, BAD = Finding("x", "ok", "fine"), Finding("x", "FAIL", "broken")
OTHER = Finding("y", "warn", "hm")


def test_what_all_ranks_found_is_told_once_without_names() -> None:
    assert merge([[GOOD, OTHER]] * 3) == [GOOD, OTHER]


def test_what_some_ranks_found_names_them_and_stays_with_its_check() -> None:
    assert merge([[GOOD, OTHER], [BAD, OTHER], [GOOD, OTHER]]) == [
        Finding("x", "ok", "ranks 0, 2: fine"),
        Finding("x", "FAIL", "rank 1: broken"),
        OTHER,
    ]


def test_what_is_ok_everywhere_is_one_row_whatever_its_details() -> None:
    found = [[Finding("memory", "ok", f"{rank} GB free")] for rank in range(4)]
    assert merge(found) == [Finding("memory", "ok", "rank 0: 0 GB free; ranks 1-3: also ok")]


def test_what_is_not_ok_keeps_all_details() -> None:
    found = [[Finding("memory", "warn", f"{rank} GB free")] for rank in range(2)]
    assert [each.detail for each in merge(found)] == ["rank 0: 0 GB free", "rank 1: 1 GB free"]


def test_a_warning_is_no_failure() -> None:
    assert not any_failed([GOOD, OTHER])
    assert any_failed([GOOD, BAD])


@pytest.mark.parametrize(
    ("ranks", "words"), [([2], "rank 2"), ([1, 0], "ranks 0-1"), ([5, 1, 2, 3, 9], "ranks 1-3, 5, 9")]
)
def test_ranks_are_named_in_runs(ranks: list[int], words: str) -> None:
    assert name_ranks(ranks) == words
