"""The end of a backward pass, after DDP's and FSDP's own ends of it."""

from __future__ import annotations

from collections.abc import Callable

from torch.autograd import Variable


def after_backward(then: Callable[[], None]) -> None:
    """Call ``then`` at the end of the backward pass under way.

    DDP and FSDP queue their own callbacks while it runs, and wait for gradients in them; what is queued in a
    callback comes after all of those.
    """
    queue = Variable._execution_engine.queue_callback
    queue(lambda: queue(then))
