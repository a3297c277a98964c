"""Calls of one rank that do not fit those of the others, at an exchange that goes on as if they did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.exchange.walk import StreamResources
from gradwire.links import ProcessGroupLink
from gradwire.sync import group as sync_group
from gradwire.wire import AVERAGE


class _AnnouncingLink(ProcessGroupLink):
    """A link whose every native all-reduce is announced in a frame, which shows calls that don't fit."""

    begins_all_reduces = False


def announce_all_reduces() -> None:
    """Let all links that are made from now on announce their all-reduces; all ranks call this."""
    vars(sync_group)["ProcessGroupLink"] = _AnnouncingLink


class Calls:
    """Sees all that the exchanges of this process are asked for, from now on, and can spoil one call."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._act: str | None = None
        self._flips = self.struck = False
        run, resources = Exchange.run, Exchange._resources

        def watched(exchange: Exchange, tensor: torch.Tensor, request: BucketRequest) -> Any:
            act, self._act = self._act, None
            if act is not None:
                self.struck = True
                self._spoil(act, run, exchange, tensor, request)
            self._seen.add(tensor.numel())
            return run(exchange, tensor, request)

        def lent(exchange: Exchange, request: BucketRequest) -> StreamResources:
            own = resources(exchange, request)
            flips, self._flips = self._flips, False
            return replace(own, flags=own.flags ^ AVERAGE) if flips else own

        Exchange.run, Exchange._resources = watched, lent  # type: ignore[assignment, method-assign]

    def arm(self, act: str) -> None:
        """Let ``act`` happen at the next call."""
        self._act = act

    def _spoil(
        self,
        act: str,
        run: Callable[..., Any],
        exchange: Exchange,
        tensor: torch.Tensor,
        request: BucketRequest,
    ) -> None:
        if act == "another bucket first":
            count = tensor.numel()
            others = sorted(each for each in self._seen if each < count)
            another = tensor[: others[-1] if others else count // 2].clone()
            run(exchange, another, replace(request, views=None, residual=None, norms=None, timeout_s=None))
        self._flips = act == "a sum for an average"
