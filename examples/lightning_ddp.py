"""Digits with Lightning: torchrun --nproc_per_node=2 examples/lightning_ddp.py."""

from __future__ import annotations

import argparse
import hashlib
import os

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.integrations.lightning import GradwireStrategy

TRAIN, BATCH = 1536, 64


def digits() -> TensorDataset:
    """Return 1797 images of 8 x 8 as float32 (64,) from 0 to 1, and their digits."""
    data = load_digits()
    return TensorDataset(torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target))


def digest(model: nn.Module) -> str:
    """Return a short hash of the weights, to compare ranks bit for bit."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    return hashlib.sha256(flat.tobytes()).hexdigest()[:16]


class Digits(pl.LightningModule):
    """A small MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    """Train, and print loss, accuracy, and gradwire's summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", default="fp8", help="a codec, or the file of a plan")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    data = digits()
    strategy = GradwireStrategy(options.plan)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")),
        strategy=strategy,  # the line that adds gradwire
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits()
    trainer.fit(model, DataLoader(TensorDataset(*data[:TRAIN]), batch_size=BATCH, shuffle=True))

    if trainer.is_global_zero:
        images, labels = data[TRAIN:]
        accuracy = (model.layers(images).argmax(1) == labels).float().mean().item()
        print(f"loss {model.losses[0]:.3f} -> {model.losses[-1]:.3f}, accuracy {accuracy:.3f}")
        print(strategy.ledger.summary())
    print(f"rank {trainer.global_rank}: weights {digest(model)}")


if __name__ == "__main__":
    main()
