"""Lets a run of FSDP's choose its plan: all ranks look at it before a backward pass reduces anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from gradwire.autotune.decision import Decision
from gradwire.autotune.pilot import Pilot
from gradwire.autotune.samples import Samples, Shadow, lost_shares
from gradwire.autotune.saved import State
from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.fsdp.links import GroupLink, Links, Purpose
from gradwire.fsdp.units import UnitLayouts
from gradwire.plan import Plan
from gradwire.sync.ledger.meter import LostMeter
from gradwire.sync.residual import AUTO

T = TypeVar("T")


class Steering:
    """Steers one run on one rank; all ranks make the same calls in the same order.

    Parameters
    ----------
    pilot
        Chooses plans.
    plan
        That of the first steps.
    links, meter
        What follows it.
    """

    def __init__(self, pilot: Pilot, plan: Plan, links: Links, meter: LostMeter) -> None:
        self.plan = plan
        self._pilot, self._links, self._meter = pilot, links, meter
        self._step, self._number, self._wait_s = 0, 0, 0.0

    @property
    def decisions(self) -> list[tuple[int, Decision]]:
        """The steps before which all ranks took a plan, and what was decided."""
        return self._pilot.decisions

    def begin(self, step: int) -> None:
        """Let ``step``, counted from 1 up, have its plan; nothing of it has been reduced."""
        self._step = step
        chosen = self._pilot.begin(step, self.plan, self._ask)
        if chosen is not None:
            self.plan = chosen
            self._links.follow(chosen)
            self._meter.judge(chosen)
        self._number, self._wait_s = 0, 0.0

    def sample(self, gradient: torch.Tensor, layouts: UnitLayouts, link: GroupLink) -> Sample | None:
        """Return what compares the gradient's shards, if this step is sampled; they are not reduced yet."""
        self._pilot.handed_over(gradient.numel())
        samples, number = self._pilot.samples, self._number
        self._number += 1
        if samples is None:
            return None
        return Sample(samples, layouts, gradient, link, drawn=samples.drawn == number)

    def waited(self, seconds: float) -> None:
        """Note for how long backward has waited for an exchange."""
        self._wait_s += seconds

    def end(self) -> None:
        """Note that a step has ended."""
        self._pilot.took(self._wait_s)

    def state_dict(self) -> dict[str, str]:
        """Return what was decided, for a checkpoint."""
        return {AUTO: self._pilot.state().to_json()}

    def load(self, state: State) -> None:
        """Go on from there in the next step; all ranks load."""
        self._pilot.load(state)

    def _ask(self, what: str, work: Callable[[Exchange], T]) -> T:
        said = f"{what} before step {self._step}"
        with self._links.using(Purpose.CHOOSE, world_group(), said) as link:
            return work(link.exchange)


class Sample:
    """One module's gradients in a sampled step: copied before they are reduced, and once more, exactly.

    Parameters
    ----------
    samples
        The step's.
    layouts
        Where parameters lie: of every parameter each rank's shard, rank by rank.
    gradient
        1-D float32, the module's gradients on this rank.
    link
        What reduces them.
    drawn
        Whether they are reduced exactly, too; the same on all ranks.
    """

    def __init__(
        self, samples: Samples, layouts: UnitLayouts, gradient: torch.Tensor, link: GroupLink, *, drawn: bool
    ) -> None:
        self._samples, self._link = samples, link
        self._layout = layouts.scattered(gradient.numel(), link.world)
        known = self._layout.names == layouts.names  # else FSDP has left some out
        self._shapes = layouts.shapes if known else [(count,) for count in self._layout.counts]
        whole = [(self._layout.copies * shape[0], *shape[1:]) for shape in self._shapes]
        of_rank = gradient.view(self._layout.copies, -1)
        parts = [part.reshape(-1) for part in torch.split(of_rank, list(self._layout.counts), 1)]
        samples.add(whole, self._layout.names, torch.cat(parts))
        self._own = gradient.to("cpu", copy=True) if drawn else None

    def compare(self, shard: torch.Tensor) -> ExchangeCost:
        """Compare this rank's shard of the sum with the exact one; return what that cost."""
        if self._own is None:
            return ExchangeCost()
        cost = Exchange(self._link.exchange.link, Plan()).reduce(self._own)
        exact = self._own.chunk(self._link.world)[self._link.place]
        if bool(exact.isfinite().all()):
            shares = lost_shares(exact, shard.to("cpu"), self._shapes, config=self._samples.config)
            found = dict(zip(self._layout.names, shares, strict=True))
            self._samples.shadow = Shadow(found, found)
        return cost


def world_group() -> dist.ProcessGroup:
    """Return the group of all ranks."""
    group = dist.group.WORLD
    assert group is not None, "attach_fsdp has checked that there is one"
    return group
