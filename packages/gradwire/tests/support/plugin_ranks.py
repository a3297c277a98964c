"""A rank of torchrun that trains three steps with the codec and the algorithm of another package."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire


def main() -> None:
    """Attach, train, and print the plan with the weights' sum."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(300, 10))
    attached = gradwire.attach(model, gradwire.Plan(gradwire.parse("top16"), "mirrored"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
    digest = float(sum(each.double().sum().item() for each in model.parameters()))
    sys.stdout.write(f"{attached.plan.codec} {attached.plan.algorithm} {digest.hex()}\n")
    attached.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
