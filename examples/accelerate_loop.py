"""Digits with Accelerate: torchrun --nproc_per_node=2 examples/accelerate_loop.py."""

from __future__ import annotations

import argparse
import hashlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.integrations.accelerate import attach_prepared

TRAIN, BATCH = 1536, 64


def digits() -> TensorDataset:
    """Return 1797 images of 8 x 8 as float32 (64,) from 0 to 1, and their digits."""
    data = load_digits()
    return TensorDataset(torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target))


def digest(model: nn.Module) -> str:
    """Return a short hash of the weights, to compare ranks bit for bit."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().cpu().numpy()
    return hashlib.sha256(flat.tobytes()).hexdigest()[:16]


def main() -> None:
    """Train, and print loss, accuracy, and gradwire's summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", default="fp8", help="a codec, or the file of a plan")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # Accelerate doesn't detect a missing GPU
    set_seed(0)
    data = digits()
    plain = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model, optimizer, batches = accelerator.prepare(
        plain,
        torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9),
        DataLoader(TensorDataset(*data[:TRAIN]), batch_size=BATCH, shuffle=True),
    )
    attached = attach_prepared(accelerator, model, options.plan)  # the line that adds gradwire

    losses = []
    for _ in range(options.epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())

    if accelerator.is_main_process:
        images, labels = data[TRAIN:]
        found = plain(images.to(accelerator.device)).argmax(1).cpu()
        accuracy = (found == labels).float().mean().item()
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {accuracy:.3f}")
        print(attached.ledger.summary())
    print(f"rank {accelerator.process_index}: weights {digest(plain)}")
    attached.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
