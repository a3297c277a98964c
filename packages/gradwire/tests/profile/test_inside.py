from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.profile import inside, session
from gradwire.profile.settings import VARIABLE, Settings

SETTINGS = Settings("/nowhere")


class Noted:
    def __init__(self) -> None:
        self.added: list[Any] = []

    def add_ddp(self, model: object) -> None:
        self.added.append(model)

    add_fsdp = add_ddp


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted()
    monkeypatch.setattr(session, "session_of", lambda settings: found if settings == SETTINGS else None)
    return found


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
    inside.watch_ddp(SETTINGS, module)
    model = Derived("model", bucket_cap_mb=3)
    assert noted.added == [model]
    assert model.made == ("model", 3)
    assert DistributedDataParallel.__init__.__doc__ == "Say how."


def test_every_sharded_module_is_watched(noted: Noted) -> None:
    def fully_shard(module: str, *, mesh: object = None) -> str:
        return f"sharded {module} {mesh}"

    fully_shard.state = "torch keeps something here"  # type: ignore[attr-defined]
    module: Any = SimpleNamespace(fully_shard=fully_shard)
    inside.watch_fsdp(SETTINGS, module)
    assert module.fully_shard("layer", mesh=2) == "sharded layer 2"
    assert noted.added == ["sharded layer 2"]
    assert module.fully_shard.state == fully_shard.state  # type: ignore[attr-defined]


def test_a_process_that_nobody_profiles_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []
    monkeypatch.setattr(inside, "when_imported", lambda name, _then: watched.append(name))
    monkeypatch.delenv(VARIABLE, raising=False)
    inside.prepare()
    assert watched == []
    monkeypatch.setenv(VARIABLE, SETTINGS.variables({})[VARIABLE])
    inside.prepare()
    assert watched == [inside.DDP, inside.FSDP]
