"""Observe the models of a profiled script from within each of its processes, once it imports torch."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

from gradwire.profile.settings import Settings

# Call a function with a module of another package as soon as the module is imported.

Then = Callable[[ModuleType], None]


def when_imported(name: str, then: Then) -> None:
    """Call ``then`` with the module after its import, or immediately if it is imported already."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(MetaPathFinder):
    """A finder that finds one module, once, with the other finders, and wraps its loader."""

    def __init__(self, name: str, then: Then) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._then)
                return spec
        return None


class _Loader(Loader):
    """A loader that loads a module with ``inner``, its only visible loader, and then calls ``then``."""

    def __init__(self, inner: Loader, then: Then) -> None:
        self._inner, self._then = inner, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# The temporary folder of one profile, and the end of the script's processes if the profiler is killed.
#
# The profiler holds a lock on a file in the folder. In every Python process of the script, a thread waits for
# that lock, and gets it as soon as the profiler has ended for any reason. Unless the file says that the
# profiler has finished, the process removes the folder, which may have gradients, and kills itself.

PREFIX = "gradwire-profile-"
_ALIVE, _BEGUN, _DONE = "alive", b"on", b"done"
_REMOVAL_S = 2.0
"""The seconds to retry removing a folder, to which processes that are ending may still add files."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a new folder that only this user can read, and remove it, and folders of killed profilers."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with (folder / _ALIVE).open("wb", buffering=0) as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)
            alive.write(_BEGUN)
            yield folder
            os.pwrite(alive.fileno(), _DONE, 0)
    finally:
        _remove(folder)


def remove_leftovers() -> None:
    """Remove this user's folders whose profilers have been killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _ALIVE).open("rb") as alive:
                fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if alive.read():  # if empty, its profiler is about to lock it
                    _remove(folder)


def end_with_profiler(folder: Path) -> None:
    """Kill this process, and its forks, if the profiler of ``folder`` ends before its work is done."""
    if _watch(folder):
        os.register_at_fork(after_in_child=lambda: _watch(folder))


def _watch(folder: Path) -> bool:
    try:
        opened = os.open(folder / _ALIVE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # on another machine, or after the profiler's end
        return False
    Thread(target=_wait, args=(opened, folder), name="gradwire lifeline", daemon=True).start()
    return True


def _wait(opened: int, folder: Path) -> None:
    with suppress(OSError):  # a process that becomes a daemon closes all files, and is not killed
        before = os.fstat(opened)
        fcntl.flock(opened, fcntl.LOCK_SH)
        if not os.path.samestat(before, os.fstat(opened)) or os.pread(opened, len(_DONE), 0) == _DONE:
            return
        shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the script may ignore any other


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVAL_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(0.05)


DDP = "torch.nn.parallel.distributed"
FSDP = "torch.distributed.fsdp._fully_shard._fully_shard"


def prepare() -> None:
    """Observe this process's DDP and FSDP2 models, if it belongs to a profiled script."""
    settings = Settings.of_environment()
    if settings is not None:
        end_with_profiler(Path(settings.folder))
        when_imported(DDP, functools.partial(watch_ddp, settings))
        when_imported(FSDP, functools.partial(watch_fsdp, settings))


def watch_ddp(settings: Settings, module: ModuleType) -> None:
    """Observe every ``DistributedDataParallel`` that is constructed from now on."""
    init = module.DistributedDataParallel.__init__

    @functools.wraps(init)
    def watched(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        _session(settings).add_ddp(self)

    module.DistributedDataParallel.__init__ = watched


def watch_fsdp(settings: Settings, module: ModuleType) -> None:
    """Observe every module that ``fully_shard`` shards from now on."""
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
