"""Pass the models in each process of a script to an observer, once the process imports torch."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gradwire.errors import JobError
from gradwire.fields import Source, of
from gradwire.files import replace_file
from gradwire.plugins import resolve
from gradwire.script.lifeline import end_with_command

if TYPE_CHECKING:
    from typing_extensions import Self

# A hook on the import of a module: a function is called with the module as soon as the script imports it.

Then = Callable[[ModuleType], None]


def when_imported(name: str, then: Then) -> None:
    """Call ``then`` with the module after its import, or immediately if the module is already imported."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(MetaPathFinder):
    """An import finder that finds one module, once, through the other finders, and wraps its loader."""

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
    """A loader that loads a module with ``inner`` and then calls ``then``.

    The module's ``__loader__`` is ``inner``, as if this class did not exist.
    """

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


# The observer of the script's models. The command names the observer in an environment variable.

VARIABLE = "GRADWIRE_SCRIPT"
START = Path(__file__).parent / "start"
"""The folder on ``PYTHONPATH`` whose ``sitecustomize`` every Python imports at its start."""
DDP = "torch.nn.parallel.distributed"
FSDP = "torch.distributed.fsdp._fully_shard._fully_shard"


class ModelObserver(Protocol):
    """An observer that receives the models of one process, in the order of their creation."""

    def add_ddp(self, model: Any) -> None:
        """Receive a new ``DistributedDataParallel``."""

    def add_fsdp(self, module: Any) -> None:
        """Receive a module, or a list of modules, that ``fully_shard`` has returned."""


@dataclass(frozen=True)
class Entry:
    """The environment variable's content: how the script's processes find the observer of their models."""

    folder: str  # the command's private folder, whose lifeline the processes watch
    observer: str  # ``module:function``; called for each model, it returns the process's ``ModelObserver``
    settings: str  # the function's argument

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the script's environment variables: ``inherited`` with this entry added."""
        path = os.pathsep.join(filter(None, (str(START), inherited.get("PYTHONPATH"))))
        return {**inherited, VARIABLE: json.dumps(asdict(self)), "PYTHONPATH": path}

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return the entry in the environment variable, or None if it is not set. Raises ``JobError``."""
        words = os.environ.get(VARIABLE)
        if not words:
            return None
        remedy = "unset the variable, which only 'gradwire profile' and 'gradwire run' set"
        return Source(VARIABLE, remedy, JobError).of_json(words, of(cls))


def prepare() -> None:
    """Pass this process's DDP and FSDP2 models to the observer, if the environment names an observer."""
    entry = Entry.of_environment()
    if entry is not None:
        end_with_command(Path(entry.folder))
        when_imported(DDP, functools.partial(watch_ddp, entry))
        when_imported(FSDP, functools.partial(watch_fsdp, entry))


def watch_ddp(entry: Entry, module: ModuleType) -> None:
    """Pass every ``DistributedDataParallel`` that is constructed from now on to the entry's observer."""
    init = module.DistributedDataParallel.__init__

    @functools.wraps(init)
    def watched(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        _observer(entry).add_ddp(self)

    module.DistributedDataParallel.__init__ = watched


def watch_fsdp(entry: Entry, module: ModuleType) -> None:
    """Pass every module that ``fully_shard`` shards from now on to the entry's observer."""
    fully_shard = module.fully_shard

    @functools.wraps(fully_shard)
    def watched(*args: Any, **options: Any) -> Any:
        sharded = fully_shard(*args, **options)
        _observer(entry).add_fsdp(sharded)
        return sharded

    module.fully_shard = watched  # type: ignore[attr-defined]


def _observer(entry: Entry) -> ModelObserver:
    found: ModelObserver = resolve(entry.observer)(entry.settings)  # imports torch, as the script already has
    return found


# The settings in an entry, and the files of results in its folder.


@dataclass(frozen=True)
class ScriptSettings:
    """The settings of ``gradwire COMMAND`` for the script's processes, and its private folder for results."""

    COMMAND: ClassVar[str]
    folder: str

    def entry(self) -> Entry:
        """Return the ``Entry`` that creates the command's session in each process of the script."""
        observer = f"gradwire.{self.COMMAND}.session:session_of"
        return Entry(self.folder, observer, json.dumps(asdict(self)))

    @classmethod
    def of_text(cls, words: str) -> Self:
        """Return the settings in the text of an ``Entry``. Raises ``JobError``."""
        remedy = f"run 'gradwire {cls.COMMAND}' again"
        return Source(f"a {cls.COMMAND}'s settings", remedy, JobError).of_json(words, of(cls))


@dataclass(frozen=True)
class ScriptResult:
    """A result that a process of the script leaves in the private folder of ``gradwire COMMAND``.

    ``WHAT`` names the result in errors, and ``KINDS`` validates fields whose type does not suffice.
    """

    COMMAND: ClassVar[str]
    WHAT: ClassVar[str]
    KINDS: ClassVar[Mapping[str, Any]] = {}

    def save(self, path: Path) -> None:
        """Write the result atomically."""
        replace_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the result in a file. Raises ``JobError`` if the file is invalid."""
        source = Source(f"the {cls.WHAT} {path}", f"run 'gradwire {cls.COMMAND}' again", JobError)
        return source.of_json(path.read_text(encoding="utf-8", errors="replace"), of(cls, **cls.KINDS))
