from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.errors import JobError
from gradwire.script import entry as inside
from gradwire.script.entry import START, VARIABLE, Entry

ENTRY = Entry("/nowhere", f"{__name__}:observer_of", "settings")


class Noted:
    def __init__(self) -> None:
        self.added: list[Any] = []

    def add_ddp(self, model: object) -> None:
        self.added.append(model)

    add_fsdp = add_ddp


FOUND = Noted()


def observer_of(settings: str) -> Noted | None:
    return FOUND if settings == ENTRY.settings else None


@pytest.fixture
def noted() -> Noted:
    FOUND.added.clear()
    return FOUND


def test_the_environment_carries_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ENTRY.variables({"PYTHONPATH": "/mine", "HOME": "/home"})
    assert found["PYTHONPATH"].split(os.pathsep) == [str(START), "/mine"]
    assert found["HOME"] == "/home"
    assert ENTRY.variables({})["PYTHONPATH"] == str(START)
    assert (START / "sitecustomize.py").is_file()
    monkeypatch.setenv(VARIABLE, found[VARIABLE])
    assert Entry.of_environment() == ENTRY
    monkeypatch.delenv(VARIABLE)
    assert Entry.of_environment() is None


@pytest.mark.parametrize("text", ["x", "[]", '{"folder": "a", "other": 1}', "{}"])
def test_what_another_program_has_set_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(
        JobError, match=r"GRADWIRE_SCRIPT.*, which only 'gradwire profile' and 'gradwire run' set"
    ):
        Entry.of_environment()


def test_every_ddp_model_is_watched_once_it_is_made(noted: Noted) -> None:
    class DistributedDataParallel:
        """What it is."""

        def __init__(self, module: str, *, bucket_cap_mb: int) -> None:
            """Say how."""
            assert not noted.added
            self.made = module, bucket_cap_mb

    class Derived(DistributedDataParallel):
        pass

    module: Any = SimpleNamespace(DistributedDataParallel=DistributedDataParallel)
    inside.watch_ddp(ENTRY, module)
    model = Derived("model", bucket_cap_mb=3)
    assert noted.added == [model]
    assert model.made == ("model", 3)
    assert DistributedDataParallel.__init__.__doc__ == "Say how."


def test_every_sharded_module_is_watched(noted: Noted) -> None:
    def fully_shard(module: str, *, mesh: object = None) -> str:
        return f"sharded {module} {mesh}"

    fully_shard.state = "torch keeps something here"  # type: ignore[attr-defined]
    module: Any = SimpleNamespace(fully_shard=fully_shard)
    inside.watch_fsdp(ENTRY, module)
    assert module.fully_shard("layer", mesh=2) == "sharded layer 2"
    assert noted.added == ["sharded layer 2"]
    assert module.fully_shard.state == fully_shard.state  # type: ignore[attr-defined]


def test_a_process_without_an_entry_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []
    monkeypatch.setattr(inside, "when_imported", lambda name, _then: watched.append(name))
    monkeypatch.delenv(VARIABLE, raising=False)
    inside.prepare()
    assert watched == []
    monkeypatch.setenv(VARIABLE, ENTRY.variables({})[VARIABLE])
    inside.prepare()
    assert watched == [inside.DDP, inside.FSDP]
