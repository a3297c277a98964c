"""What the mixins do around Lightning's own methods; the framework is a list of its calls here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import AttachError, ExchangeError, SpecError
from gradwire.integrations.lightning_parts import CallbackParts, StrategyParts


class Files:
    """Lightning's checkpoint files, in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def save_checkpoint(self, record: Any, path: str) -> None:
        self.kept[str(path)] = record

    def load_checkpoint(self, path: str) -> Any:
        return self.kept[str(path)]

    def remove_checkpoint(self, path: str) -> None:
        del self.kept[str(path)]


class Base:
    """What stands behind a mixin; it notes what it is asked for."""

    def __init__(self, **ddp: Any) -> None:
        self.ddp, self.calls = ddp, list[str]()
        self.model: Any = None
        self.precision_plugin = SimpleNamespace(scaler=None)
        self.checkpoint_io = Files()

    def configure_ddp(self) -> None:
        self.calls.append("configure")

    def optimizer_step(self, *words: Any, **_: Any) -> Any:
        self.calls.append("step")
        return words

    def on_train_end(self, *_: Any) -> None:
        self.calls.append("end")

    def teardown(self) -> None:
        self.calls.append("teardown")

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        self.checkpoint_io.save_checkpoint((dict(checkpoint), storage_options), filepath)

    def load_checkpoint(self, checkpoint_path: Any) -> Any:
        return self.checkpoint_io.load_checkpoint(checkpoint_path)[0]

    def remove_checkpoint(self, filepath: Any) -> None:
        self.checkpoint_io.remove_checkpoint(filepath)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        self.calls.append(f"optimizers of step {checkpoint['global_step']}")


class Strategy(StrategyParts, Base):
    """As ``GradwireStrategy`` is made."""


class Callback(CallbackParts, Base):
    """As ``GradwireCallback`` is made."""


def strategy(model: DistributedDataParallel, spec: str = "topk:0.5", **options: Any) -> Strategy:
    made = Strategy(spec, **options)
    made.model = model
    made.configure_ddp()
    return made


def test_a_strategy_passes_on_what_is_lightnings_and_refuses_a_second_hook() -> None:
    assert Strategy("fp8", find_unused_parameters=True).ddp == {"find_unused_parameters": True}
    taken: Any = print
    nothing: Any = None
    for hook in ("ddp_comm_hook", "ddp_comm_state", "ddp_comm_wrapper"):
        with pytest.raises(
            SpecError, match=f"communication hook besides gradwire's, got {hook}; omit {hook}$"
        ):
            Strategy("fp8", **{hook: taken})
        assert Strategy("fp8", **{hook: nothing})


def test_a_strategy_attaches_after_lightning_has_wrapped(model: DistributedDataParallel) -> None:
    made = Strategy("fp8")
    with pytest.raises(AttachError, match="not attached yet"):
        _ = made.attached
    made = strategy(model, "fp8")
    assert made.calls == ["configure"]
    assert made.attached.ledger is made.ledger
    assert made.optimizer_step(1, 2) == (1, 2)
    with pytest.raises(AttachError, match="weights were updated 1 times, but no gradient reached"):
        made.on_train_end()
    made.teardown()
    assert made.calls == ["configure", "step", "end", "teardown"]


def test_a_strategy_closes_even_where_lightning_fails(
    model: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Base) -> None:
        raise RuntimeError("no teardown")

    made = strategy(model, "fp8")
    monkeypatch.setattr(Base, "teardown", broken)
    with pytest.raises(RuntimeError, match="no teardown"):
        made.teardown()
    with pytest.raises(ExchangeError, match="closed"):
        model(torch.ones(3, 4)).sum().backward()


def test_residuals_lie_beside_a_checkpoint_and_go_with_it(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    made, path = strategy(model), str(tmp_path / "last.ckpt")
    beside = f"{path}.gradwire-rank0-of-1.pt"
    made.save_checkpoint({"global_step": 3, "optimizer_states": []}, path, storage_options="fast")
    files = made.checkpoint_io.kept
    assert set(files) == {path, beside}
    assert files[path] == ({"global_step": 3, "optimizer_states": [], "gradwire": {"world": 1}}, "fast")
    made.remove_checkpoint(path)
    assert files == {}
    made.save_checkpoint({"global_step": 3}, path)
    assert set(files) == {path}, "weights alone have no residuals"
    made.teardown()


def test_residuals_come_back_with_the_optimizers(model: DistributedDataParallel, tmp_path: Path) -> None:
    made, path = strategy(model), str(tmp_path / "last.ckpt")
    residual = made.attached.state_dict()
    made.save_checkpoint({"global_step": 3, "optimizer_states": []}, path)
    checkpoint = made.load_checkpoint(path)
    made.load_optimizer_state_dict(checkpoint)
    assert made.calls[-1] == "optimizers of step 3"
    assert repr(made.attached.state_dict()) == repr(residual)
    del made.checkpoint_io.kept[f"{path}.gradwire-rank0-of-1.pt"]
    made._gradwire.resume_residuals = False
    made.load_optimizer_state_dict(checkpoint)  # looks for nothing
    made.teardown()


def test_a_checkpoint_of_another_strategy_has_none(model: DistributedDataParallel) -> None:
    made = strategy(model)
    made.load_optimizer_state_dict({"global_step": 5})
    assert made.calls[-1] == "optimizers of step 5"
    made.teardown()


def test_a_callback_counts_from_where_training_began(model: DistributedDataParallel) -> None:
    made = Callback("fp8")
    trainer = SimpleNamespace(strategy=SimpleNamespace(model=model), global_step=7)
    made.on_fit_start(trainer, None)
    made.on_train_start(trainer, None)
    made.on_train_end(trainer, None)  # no update, so none had to be compressed
    trainer.strategy.model = DistributedDataParallel(model.module)
    made.on_fit_start(trainer, None)
    trainer.global_step = 9
    with pytest.raises(AttachError, match="weights were updated 2 times"):
        made.on_train_end(trainer, None)


def test_a_callback_closes_after_an_exception_and_keeps_no_residuals(model: DistributedDataParallel) -> None:
    with pytest.raises(SpecError, match=r"Lightning's callbacks cannot save for each rank, got topk:0\.5"):
        Callback("topk:0.5")
    made = Callback("fp8")
    made.on_fit_start(SimpleNamespace(strategy=SimpleNamespace(model=model)), None)
    made.on_exception(None, None, KeyboardInterrupt())
    made.on_exception(None, None, KeyboardInterrupt())
