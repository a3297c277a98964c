"""Lossy gradient codecs with guaranteed bounds in every hop of the all-reduce, for PyTorch.

Names are imported on first use, because importing torch takes seconds: ``gradwire --help`` and errors about
mistyped options must not wait for torch.
"""

import importlib

_HOMES = {
    "Attached": "gradwire.attached",
    "Auto": "gradwire.autotune",
    "Choice": "gradwire.planner",
    "Codec": "gradwire.codecs",
    "DSync": "gradwire.local",
    "Exchange": "gradwire.exchange",
    "ExchangeCost": "gradwire.costs",
    "HostOffload": "gradwire.offload.host_offload",
    "Ledger": "gradwire.sync.ledger.ledger",
    "Link": "gradwire.links",
    "PipeSGD": "gradwire.pipe.pipe_sgd",
    "Plan": "gradwire.plan",
    "ProcessGroupLink": "gradwire.links",
    "Sharded": "gradwire.sharded",
    "all_reduce": "gradwire.api",
    "attach": "gradwire.ddp.attach",
    "attach_fsdp": "gradwire.fsdp.attach",
    "choose_plan": "gradwire.planner",
    "load_checkpoint": "gradwire.checkpoints",
    "loopback": "gradwire.links",
    "parse": "gradwire.codecs",
    "record_gradients": "gradwire.planner",
    "redivide": "gradwire.sync.checkpoint",
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
