"""A linear model with Ray Train: python examples/ray/train.py."""

import ray.train
import ray.train.torch
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

import gradwire


def train(config: dict[str, str]) -> None:
    """Train one worker's replica."""
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 1))
    attached = gradwire.attach(model, config["plan"])  # the line that adds gradwire

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        x = torch.randn(32, 64)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()

    if ray.train.get_context().get_world_rank() == 0:
        print(attached.ledger.summary())
    attached.close()


trainer = TorchTrainer(
    train,
    train_loop_config={"plan": "fp8"},
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
)
trainer.fit()
