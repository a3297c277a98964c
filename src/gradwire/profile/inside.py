"""In every process of a profiled script: watch the models that it wraps, from the moment it imports torch."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

from gradwire.profile.imports import when_imported
from gradwire.profile.lifeline import end_with_profiler
from gradwire.profile.settings import Settings

DDP = "torch.nn.parallel.distributed"
FSDP = "torch.distributed.fsdp._fully_shard._fully_shard"


def prepare() -> None:
    """Watch what this process wraps, if it is one of a profiled script."""
    settings = Settings.of_environment()
    if settings is not None:
        end_with_profiler(Path(settings.folder))
        when_imported(DDP, functools.partial(watch_ddp, settings))
        when_imported(FSDP, functools.partial(watch_fsdp, settings))


def watch_ddp(settings: Settings, module: ModuleType) -> None:
    """Watch every ``DistributedDataParallel`` that is made."""
    init = module.DistributedDataParallel.__init__

    @functools.wraps(init)
    def watched(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        _session(settings).add_ddp(self)

    module.DistributedDataParallel.__init__ = watched


def watch_fsdp(settings: Settings, module: ModuleType) -> None:
    """Watch every module that ``fully_shard`` shards."""
    fully_shard = module.fully_shard

    @functools.wraps(fully_shard)
    def watched(*args: Any, **options: Any) -> Any:
        sharded = fully_shard(*args, **options)
        _session(settings).add_fsdp(sharded)
        return sharded

    module.fully_shard = watched  # type: ignore[attr-defined]


def _session(settings: Settings) -> Any:
    from gradwire.profile.session import session_of  # imports torch, as the script has done by now

    return session_of(settings)
