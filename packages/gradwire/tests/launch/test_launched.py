"""What the variables of a launcher say, and which of them are refused."""

import pytest

from gradwire.errors import JobError
from gradwire.launch.launched import is_launched, launched_rank, launched_workers
from support.launched import launch


def test_without_the_variables_a_job_is_local() -> None:
    assert not is_launched()
    assert launched_workers(True, 4) is None


@pytest.mark.parametrize(
    ("rank", "world", "reason"),
    [("x", 2, "RANK: expected a whole number, got 'x'"), (2, 2, "a RANK below WORLD_SIZE=2, got 2")],
)
def test_odd_variables_are_named(
    monkeypatch: pytest.MonkeyPatch, rank: object, world: object, reason: str
) -> None:
    launch(monkeypatch, rank, world)
    with pytest.raises(JobError, match=reason):
        launched_rank()


def test_workers_are_counted_from_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, 0, 5)
    assert launched_workers(has_server=False, asked=None) == 5
    assert launched_workers(has_server=True, asked=4) == 4
    with pytest.raises(JobError, match="expected processes for 5 workers and a server, got 5"):
        launched_workers(has_server=True, asked=5)
    launch(monkeypatch, 0, 1)
    with pytest.raises(JobError, match="at least 1 worker and a server"):
        launched_workers(has_server=True, asked=None)


@pytest.mark.parametrize("given", [{"RANK": "1"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_a_rank_that_is_told_only_half_does_not_train_alone(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(JobError, match=r"got no .*MASTER_ADDR; start with torchrun, or unset RANK"):
        launched_workers(has_server=False, asked=None)


def test_an_address_alone_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert launched_workers(has_server=False, asked=None) is None
