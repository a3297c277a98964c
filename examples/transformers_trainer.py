"""Digits with Hugging Face's Trainer: torchrun --nproc_per_node=2 examples/transformers_trainer.py.

The model is a vision transformer of two layers, initialised here, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from gradwire.integrations.transformers import GradwireCallback

TRAIN, BATCH = 1536, 64


def digits() -> list[dict[str, Any]]:
    """Return 1797 images of 8 x 8 as float32 (1, 8, 8) from 0 to 1, and their digits."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    return [
        {"pixel_values": image, "labels": int(label)}
        for image, label in zip(images, data.target, strict=True)
    ]


def digest(model: nn.Module) -> str:
    """Return a short hash of the weights, to compare ranks bit for bit."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().cpu().numpy()
    return hashlib.sha256(flat.tobytes()).hexdigest()[:16]


def accuracy_of(predicted: Any) -> dict[str, float]:
    """Return the accuracy of the predictions."""
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


def main() -> None:
    """Train, and print loss, accuracy, and gradwire's summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", default="fp8", help="a codec, or the file of a plan")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()

    set_seed(0)
    data = digits()
    shape = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, num_labels=10, hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=2,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            ViTForImageClassification(shape),
            TrainingArguments(
                output_dir=folder,
                num_train_epochs=options.epochs,
                per_device_train_batch_size=BATCH,
                learning_rate=5e-3,
                logging_steps=12,
                logging_first_step=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),  # the trainer doesn't detect a missing GPU
                dataloader_pin_memory=False,
            ),
            train_dataset=data[:TRAIN],
            eval_dataset=data[TRAIN:],
            compute_metrics=accuracy_of,
        )
        gradwire = GradwireCallback(trainer, options.plan)
        trainer.add_callback(gradwire)  # the line that adds gradwire
        trainer.train()
        accuracy = trainer.evaluate()["eval_accuracy"]

    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {accuracy:.3f}")
        print(gradwire.ledger.summary())
    print(f"rank {trainer.args.process_index}: weights {digest(trainer.model)}")


if __name__ == "__main__":
    main()
