"""Other people's loops with a scaled loss, whose scale changes every few steps; a process finds it here.

Powers of two change no choice of ``topk`` and no rounding, so a scaled run has the bits of a plain one, if
the residuals follow its scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler

from support.framework_ranks import (
    BATCH,
    PLAN,
    SAME_BUCKETS,
    STEPS,
    Regression,
    as_torchrun_does,
    loop_of,
    make_data,
    make_layers,
    weights,
)

Weights = dict[str, list[float]]


def make_scaler() -> GradScaler:
    return GradScaler("cpu", init_scale=1024.0, growth_interval=2)


def with_accelerate(folder: Path) -> Weights:
    as_torchrun_does()
    from accelerate import Accelerator, DistributedDataParallelKwargs

    from gradwire.integrations.accelerate import attach_prepared

    def train(scaler: GradScaler | None, resumes: bool = False) -> list[float]:
        accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(**SAME_BUCKETS)])
        accelerator.scaler = scaler  # as mixed_precision="fp16" does on a GPU
        layers = make_layers()
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = accelerator.prepare(layers, optimizer)
        attached = attach_prepared(accelerator, model, PLAN)
        if resumes:
            accelerator.load_state(str(folder))
        x, y = make_data()[:]
        rank, world = dist.get_rank(), dist.get_world_size()
        for step in range(STEPS // 2 if resumes else 0, STEPS):
            mine = slice(rank + step * BATCH * world, (step + 1) * BATCH * world, world)
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(x[mine]), y[mine]))
            optimizer.step()
            if step == STEPS // 2 - 1 and scaler is not None:
                accelerator.save_state(str(folder))
        attached.close()
        return weights(layers)

    return {"plain": train(None), "scaled": train(make_scaler()), "resumed": train(make_scaler(), True)}


def with_lightning(folder: Path) -> Weights:
    as_torchrun_does()
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import MixedPrecision

    from gradwire.integrations.lightning import GradwireStrategy

    class Scaled(MixedPrecision):  # type: ignore[misc]  # mypy takes it for Any
        """Scales the loss, and computes in float32: of float16 there is nothing to show here."""

        def __init__(self) -> None:
            super().__init__("16-mixed", "cpu", scaler=make_scaler())

        def autocast_context_manager(self) -> Any:
            return torch.autocast("cpu", enabled=False)

    fit = loop_of(pl)

    def train(*plugins: Any, checkpoint: Path | None = None, keeps: bool = False) -> list[float]:
        strategy = GradwireStrategy(PLAN, **SAME_BUCKETS)
        keep = [pl.callbacks.ModelCheckpoint(folder, "middle-{epoch}", save_top_k=-1)] if keeps else []
        return weights(fit(strategy, *keep, plugins=list(plugins), checkpoint=checkpoint).model)

    return {
        "plain": train(),
        "scaled": train(Scaled(), keeps=True),
        "resumed": train(Scaled(), checkpoint=folder / "middle-epoch=0.ckpt"),
    }


def with_transformers(folder: Path) -> Weights:
    as_torchrun_does()
    from transformers import Trainer, TrainingArguments

    from gradwire.integrations.transformers import GradwireCallback

    data = [{"x": x, "labels": y} for x, y in zip(*make_data().tensors, strict=True)]

    def train(scaler: GradScaler | None, resume: Path | None = None) -> list[float]:
        arguments = TrainingArguments(
            output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=BATCH,
            save_steps=STEPS // 2, learning_rate=0.05, report_to="none", disable_tqdm=True,
            logging_steps=STEPS, use_cpu=True, dataloader_pin_memory=False, remove_unused_columns=False,
            max_grad_norm=0.0,  # clipping asks for the precision, which is not float16 here
        )  # fmt: skip
        trainer = Trainer(Regression(), arguments, train_dataset=data)
        trainer.accelerator.scaler = scaler
        trainer.add_callback(GradwireCallback(trainer, PLAN))
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        assert trainer.model is not None
        return weights(trainer.model)

    plain = train(None)
    dist.barrier()
    scaled = train(make_scaler())
    return {"plain": plain, "scaled": scaled, "resumed": train(make_scaler(), folder / "checkpoint-4")}
