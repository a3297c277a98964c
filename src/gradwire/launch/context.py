"""What ranks that work together are given, and the messages in which they report how it ended."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch._C._distributed_c10d import Store  # torch.distributed exports it at run time only

from gradwire.errors import ExchangeError, GradwireError, LinkError
from gradwire.launch.launched import whole
from gradwire.testbed.current import is_inside

Event = TypeVar("Event")
Options = TypeVar("Options")


@dataclass
class RankContext(Generic[Event]):
    """What one rank is given: who it is, where it reports to, and how it finds the others.

    ``doing`` is where it is in its work, for the message if it fails; ``join_store`` returns the store that
    all ranks share, once.
    """

    rank: int
    world: int
    report: Callable[[Event], None]
    join_store: Callable[[], Store]
    doing: str = "starting"

    @property
    def ranks_here(self) -> int:
        """How many ranks share this machine's cores; the hosts of a testbed are one machine."""
        if is_inside():
            return self.world
        return whole("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else self.world


@dataclass(frozen=True)
class Task(Generic[Options, Event]):
    """What all ranks do together.

    Parameters
    ----------
    work
        Called in every rank with its context and ``options``; a module's own function where ranks are
        processes that are started here, since they find it by its name.
    options
        Data that every rank gets.
    world
        The number of ranks.
    timeout_s
        How long a rank waits for the others at most, in seconds.
    shared
        The options that launched ranks must have been given alike, by their names.
    preload
        Modules whose import takes seconds: done once, for all processes that are started here.
    title
        What a message calls a rank.
    when
        What a message says of the time, such as "during run 2", after the last event (None: there was none).
    """

    work: Callable[[RankContext[Event], Options], None]
    options: Options
    world: int
    timeout_s: float
    shared: Mapping[str, object] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    title: Callable[[int], str] = "rank {}".format
    when: Callable[[Event | None], str] = lambda _event: "at work"


@dataclass(frozen=True)
class Finished:
    """A rank has done its work."""

    rank: int


@dataclass(frozen=True)
class Warned:
    """A rank's lossy warning, which its starter logs, too."""

    sentence: str


@dataclass(frozen=True)
class Failed:
    """A rank gives up.

    ``consequence`` marks a failure that may only be the echo of another rank's: a peer that is gone or
    silent. ``details`` is the traceback of an internal error, "" for an error that gradwire raises on
    purpose.
    """

    rank: int
    doing: str
    reason: str
    consequence: bool
    details: str = ""


def describe_failure(context: RankContext[Event], error: BaseException) -> Failed:
    """Return what a rank says when it gives up."""
    return Failed(
        rank=context.rank,
        doing=context.doing,
        reason=str(error) or type(error).__name__,
        consequence=isinstance(error, LinkError | ExchangeError),
        details="" if isinstance(error, GradwireError) else traceback.format_exc(),
    )
