"""What a rank knows of its place, and what it says when it gives up."""

from __future__ import annotations

import json

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.errors import ExchangeError, JobError, LinkTimeoutError
from gradwire.launch.local import Failed, RankContext, Task, describe_failure
from gradwire.machine import TOPOLOGY


@pytest.fixture
def context() -> RankContext[object]:
    return RankContext(2, 6, lambda _: None, HashStore, doing="step 3")


def test_ranks_share_a_machine_as_the_launcher_says(
    context: RankContext[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert context.ranks_here == 6
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert context.ranks_here == 3
    monkeypatch.setenv(TOPOLOGY, json.dumps({}))
    assert context.ranks_here == 6, "the hosts of a testbed are one machine"


@pytest.mark.parametrize(
    ("error", "consequence"),
    [(LinkTimeoutError("silent"), True), (ExchangeError("gone"), True), (JobError("options"), False)],
)
def test_only_a_peers_failure_may_be_an_echo(
    error: Exception, consequence: bool, context: RankContext[object]
) -> None:
    assert describe_failure(context, error) == Failed(2, "step 3", str(error), consequence)


def test_an_error_of_somebody_else_keeps_its_traceback(context: RankContext[object]) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        failed = describe_failure(context, error)
    assert (failed.reason, failed.consequence) == ("ZeroDivisionError", False)
    assert failed.details.rstrip().endswith("ZeroDivisionError")
    assert __file__ in failed.details


def test_a_task_calls_a_rank_by_its_number() -> None:
    task: Task[None, object] = Task(lambda _context, _options: None, None, 2, 5.0)
    assert (task.title(1), task.when(None)) == ("rank 1", "at work")
