"""Training with other people's loops, in the processes of a test: what each rank saw."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.errors import GradwireError
from gradwire.sync.ledger.summary import Summary

PLAN, STEPS, BATCH = "topk:0.1", 8, 6
SAME_BUCKETS: dict[str, Any] = {"find_unused_parameters": True}  # or DDP cuts others after its first step
Seen = dict[str, Any]


def as_torchrun_does() -> None:
    """Tell the frameworks, through the environment, that these processes were started for them."""
    torch.set_num_threads(1)
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "test", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip


def make_layers() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))


def make_data() -> TensorDataset:
    """Return what ``STEPS`` steps of all ranks need, once."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(STEPS * BATCH * dist.get_world_size(), 12, generator=generator)
    return TensorDataset(x, torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3]], dim=1))


def weights(model: nn.Module) -> list[float]:
    flat: list[float] = nn.utils.parameters_to_vector(model.parameters()).tolist()
    return flat


def error_of(act: Callable[[], object]) -> str:
    """Return the words of gradwire's error, as every rank must have one."""
    try:
        act()
    except GradwireError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def counted(summary: Summary) -> Seen:
    total = summary.total
    return {"steps": summary.steps, "raw": total.cost.raw_nbytes, "wire": total.cost.wire_nbytes}


def everywhere(act: Callable[[], object]) -> None:
    """Let rank 0 do something to files while the others wait for it."""
    dist.barrier()
    if dist.get_rank() == 0:
        act()
    dist.barrier()


def swap(first: Path, second: Path) -> None:
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def spoil(model: nn.Module) -> None:
    """Do to rank 1's weights what a damaged file does."""
    if dist.get_rank() == 1:
        with torch.no_grad():
            next(model.parameters()).view(-1)[5] += 2**-20


def accelerate_loop(folder: Path) -> Seen:
    """Train, save in the middle, go on from there in new objects."""
    as_torchrun_does()
    from accelerate import Accelerator, DistributedDataParallelKwargs

    from gradwire.integrations.accelerate import attach_prepared

    def begin() -> tuple[Any, ...]:
        accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(**SAME_BUCKETS)])
        layers = make_layers()
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = accelerator.prepare(layers, optimizer)
        return accelerator, layers, model, optimizer, attach_prepared(accelerator, model, PLAN)

    def train(parts: tuple[Any, ...], steps: range) -> None:
        accelerator, _, model, optimizer, _ = parts
        x, y = make_data()[:]
        rank, world = dist.get_rank(), dist.get_world_size()
        for step in steps:
            mine = slice(rank + step * BATCH * world, (step + 1) * BATCH * world, world)
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(x[mine]), y[mine]))
            optimizer.step()

    first = begin()
    train(first, range(STEPS // 2))
    first[0].save_state(str(folder / "middle"))
    train(first, range(STEPS // 2, STEPS))
    first[4].close()

    second = begin()
    second[0].load_state(str(folder / "middle"))
    train(second, range(STEPS // 2, STEPS))
    second[4].close()

    apart = begin()
    apart[0].load_state(str(folder / "middle"))
    spoil(apart[1])
    differ = error_of(lambda: train(apart, range(1)))
    apart[4].close()

    third = begin()
    everywhere(
        lambda: swap(
            folder / "middle" / "gradwire-rank0-of-2.pt", folder / "middle" / "gradwire-rank1-of-2.pt"
        )
    )
    swapped = error_of(lambda: third[0].load_state(str(folder / "middle")))
    third[4].close()
    unprepared = error_of(lambda: attach_prepared(third[0], make_layers(), PLAN))
    return {
        "whole": weights(first[1]),
        "resumed": weights(second[1]),
        "counted": counted(first[4].ledger.summary()),
        "files": [name for name in names(folder / "middle") if name.startswith("gradwire")],
        "swapped": swapped,
        "apart": differ,
        "refused": unprepared,
    }


class Regression(nn.Module):
    """What a ``Trainer`` wants of a model that is none of transformers'."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layers(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def transformers_trainer(folder: Path) -> Seen:
    """Train, with a checkpoint in the middle; then go on from there in new objects, in several ways."""
    as_torchrun_does()
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from gradwire.integrations.transformers import GradwireCallback

    data = [{"x": x, "labels": y} for x, y in zip(*make_data().tensors, strict=True)]
    middle = folder / "checkpoint-4"

    def make(out: Path, **options: Any) -> tuple[Any, GradwireCallback]:
        arguments = TrainingArguments(
            output_dir=str(out), max_steps=STEPS, per_device_train_batch_size=BATCH, save_steps=STEPS // 2,
            learning_rate=0.05, report_to="none", disable_tqdm=True, logging_steps=STEPS, use_cpu=True,
            dataloader_pin_memory=False, remove_unused_columns=False,
        )  # fmt: skip
        trainer = Trainer(Regression(), arguments, train_dataset=data)
        callback = GradwireCallback(trainer, PLAN, **options)
        trainer.add_callback(callback)
        return trainer, callback

    def unwrapped(model: nn.Module) -> None:
        trainer, callback = make(folder)
        trainer.model_wrapped = model
        callback.on_train_begin(trainer.args, trainer.state)

    first, callback = make(folder)
    first.train()
    seen: Seen = {"whole": weights(first.model), "counted": counted(callback.ledger.summary())}
    seen["files"] = [name for name in names(middle) if name.startswith("gradwire")]
    first.args.output_dir = str(folder / "again")
    first.train()  # with the same Trainer: it wraps its model, and attaches, anew
    seen["again"] = counted(callback.ledger.summary())

    second, _ = make(folder)
    second.train(resume_from_checkpoint=str(middle))
    seen["resumed"] = weights(second.model)

    class Spoils(TrainerCallback):
        def on_train_begin(self, *_: Any, model: nn.Module, **__: Any) -> None:
            spoil(model)

    apart, _ = make(folder)
    apart.add_callback(Spoils())
    seen["apart"] = error_of(lambda: apart.train(resume_from_checkpoint=str(middle)))
    without, _ = make(folder, resume_residuals=False)
    without.train(resume_from_checkpoint=str(middle))
    seen["without"] = weights(without.model)

    elsewhere = folder / "elsewhere"
    lost, _ = make(elsewhere)
    seen["lost"] = error_of(lambda: lost.train(resume_from_checkpoint=str(middle)))
    named, _ = make(elsewhere, resume_from=middle)
    named.train(resume_from_checkpoint=str(middle))
    seen["named"] = weights(named.model)
    everywhere(lambda: swap(middle / "gradwire-rank0-of-2.pt", middle / "gradwire-rank1-of-2.pt"))
    swapped, _ = make(folder)
    seen["swapped"] = error_of(lambda: swapped.train(resume_from_checkpoint=str(middle)))
    seen["refused"] = error_of(lambda: unwrapped(make_layers()))
    return seen


def loop_of(pl: Any) -> Callable[..., Any]:
    """Return what fits a model for two epochs with the package ``pl``, and returns the Trainer."""

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make_layers()

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def fit(strategy: Any, *callbacks: Any, checkpoint: Path | None = None, plugins: Any = None) -> Any:
        trainer = pl.Trainer(
            accelerator="cpu", devices=dist.get_world_size(), strategy=strategy, max_epochs=2, logger=False,
            enable_checkpointing=any(isinstance(each, pl.callbacks.ModelCheckpoint) for each in callbacks),
            enable_progress_bar=False, enable_model_summary=False, callbacks=list(callbacks), plugins=plugins,
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(make_data(), batch_size=BATCH), ckpt_path=checkpoint)
        return trainer

    return fit


def pytorch_lightning_trainer() -> Seen:
    """Train with the older package: the strategy by its name, and the callback."""
    as_torchrun_does()
    import pytorch_lightning

    from gradwire.integrations.pytorch_lightning import GradwireCallback

    fit = loop_of(pytorch_lightning)
    named, callback = fit("gradwire"), GradwireCallback("quantize:8")
    fit("ddp", callback)
    return {
        "named": counted(named.strategy.ledger.summary()),
        "callback": counted(callback.ledger.summary()),
        "weights": weights(named.model),
    }


def lightning_trainer(folder: Path) -> Seen:
    """Train two epochs, with a checkpoint between them; then go on from there in several ways."""
    as_torchrun_does()
    import lightning.pytorch as pl

    from gradwire.integrations.lightning import GradwireCallback, GradwireStrategy

    everywhere(lambda: folder.mkdir(exist_ok=True))
    fit = loop_of(pl)
    middle = folder / "middle-epoch=0.ckpt"
    keep = pl.callbacks.ModelCheckpoint(folder, "middle-{epoch}", save_top_k=-1)
    strategy = GradwireStrategy(PLAN, **SAME_BUCKETS)
    whole = fit(strategy, keep)
    seen: Seen = {"whole": weights(whole.model), "counted": counted(strategy.ledger.summary())}
    seen["files"] = names(folder)
    seen["resumed"] = weights(fit(GradwireStrategy(PLAN, **SAME_BUCKETS), checkpoint=middle).model)

    class Spoils(pl.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            del trainer
            spoil(pl_module)

    seen["apart"] = error_of(lambda: fit(GradwireStrategy(PLAN, **SAME_BUCKETS), Spoils(), checkpoint=middle))
    seen["without"] = weights(
        fit(GradwireStrategy(PLAN, resume_residuals=False, **SAME_BUCKETS), checkpoint=middle).model
    )

    callback = GradwireCallback("errbound:2^-10")
    fit("ddp", callback)
    seen["callback"] = counted(callback.ledger.summary())
    named = fit("gradwire")
    seen["named"] = counted(named.strategy.ledger.summary())

    own = [folder / f"middle-epoch=0.ckpt.gradwire-rank{rank}-of-2.pt" for rank in range(2)]
    everywhere(lambda: swap(*own))
    seen["swapped"] = error_of(lambda: fit(GradwireStrategy(PLAN), checkpoint=middle))
    everywhere(own[0].unlink)
    everywhere(own[1].unlink)
    seen["missing"] = error_of(lambda: fit(GradwireStrategy(PLAN), checkpoint=middle))
    sharded: Any = SimpleNamespace(strategy=SimpleNamespace(model=make_layers()))
    seen["refused"] = error_of(lambda: GradwireCallback().on_fit_start(sharded, None))
    seen["callback keeps"] = error_of(lambda: GradwireCallback(PLAN))
    seen["second hook"] = error_of(lambda: GradwireStrategy(ddp_comm_hook=print))

    whole.strategy.remove_checkpoint(folder / "middle-epoch=1.ckpt")
    dist.barrier()
    seen["removed"] = names(folder)
    return seen
