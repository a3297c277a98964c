"""Calls of one rank that do not fit those of the others, at an exchange that goes on as if they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradwire.exchange import Exchange
from gradwire.wire import AVERAGE

_HALF, _TENSOR, _FLAGS = 0, 1, 3


class Calls:
    """Sees all that the exchanges of this process are asked for, from now on, and can spoil one call."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._act: str | None = None
        self.struck = False
        walk = Exchange._run

        def watched(exchange: Exchange, *args: Any, **kwargs: Any) -> Any:
            act, self._act = self._act, None
            if act is not None:
                self.struck = True
                self._spoil(act, walk, exchange, list(args))
            if act == "a sum for an average":
                args = (*args, 0) if len(args) == _FLAGS else args  # a broadcast has none
                args = (*args[:_FLAGS], args[_FLAGS] ^ AVERAGE, *args[_FLAGS + 1 :])
            self._seen.add(args[_TENSOR].numel())
            return walk(exchange, *args, **kwargs)

        Exchange._run = watched  # type: ignore[assignment, method-assign]

    def arm(self, act: str) -> None:
        """Let ``act`` happen at the next call."""
        self._act = act

    def _spoil(self, act: str, walk: Callable[..., Any], exchange: Exchange, args: list[Any]) -> None:
        if act == "another bucket first":
            count = args[_TENSOR].numel()
            others = sorted(each for each in self._seen if each < count)
            another = args[_TENSOR][: others[-1] if others else count // 2].clone()
            walk(exchange, args[_HALF], another, *args[_TENSOR + 1 : _FLAGS + 1])
