"""Lossy gradient codecs with guaranteed bounds in every hop of the all-reduce, for PyTorch.

Names are loaded when they are first used, because importing torch takes seconds, and ``gradwire --help`` or a
mistyped option shouldn't wait for it.
"""

import importlib

_HOMES = {
    "Auto": "gradwire.auto",
    "Choice": "gradwire.planner",
    "Codec": "gradwire.codecs",
    "Exchange": "gradwire.exchange",
    "ExchangeCost": "gradwire.costs",
    "HostOffload": "gradwire.training.offload.host_offload",
    "Ledger": "gradwire.training.ledger.ledger",
    "Link": "gradwire.links",
    "PipeSGD": "gradwire.training.pipe.pipe_sgd",
    "Plan": "gradwire.plan",
    "ProcessGroupLink": "gradwire.links",
    "all_reduce": "gradwire.api",
    "attach": "gradwire.training.ddp.hook",
    "attach_fsdp": "gradwire.training.fsdp.attach",
    "choose_plan": "gradwire.planner",
    "load_checkpoint": "gradwire.checkpoints",
    "loopback": "gradwire.links",
    "parse": "gradwire.codecs",
    "record_gradients": "gradwire.planner",
    "save_checkpoint": "gradwire.checkpoints",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
