"""A GPT modelled on nanoGPT's train.py: DDP, gradient accumulation, clipping, AdamW with decay.

It doesn't use gradwire: torchrun --nproc-per-node 2 bench/profiled/gpt_train.py
"""

from __future__ import annotations

import argparse
import math
import os

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as in nanoGPT

VOCABULARY = 256


class Block(nn.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs, which have the shape of ``x``."""
        batch, length, width = x.shape
        q, k, v = (
            each.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for each in self.attn(self.ln_1(x)).split(width, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        mixed: torch.Tensor = x + self.mlp(self.ln_2(x))
        return mixed


class GPT(nn.Module):
    """A small GPT over bytes."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        return functional.cross_entropy(self.lm_head(self.ln_f(x)).view(-1, VOCABULARY), targets.view(-1))


def get_lr(it: int, warmup: int, last: int, highest: float) -> float:
    """Return the learning rate of a step: a linear warm-up, then a cosine decay."""
    if it < warmup:
        return highest * (it + 1) / (warmup + 1)
    share = min(1.0, (it - warmup) / max(1, last - warmup))
    return 0.1 * highest + 0.45 * highest * (1 + math.cos(math.pi * share))


def main() -> None:
    """Train the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-iters", type=int, default=40)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    words = parser.parse_args()

    init_process_group(backend="gloo")
    rank, length = int(os.environ["RANK"]), 64
    torch.manual_seed(1337)
    generator = torch.Generator().manual_seed(1337 + rank)
    data = torch.randint(0, VOCABULARY, (100_000,), generator=generator).cumsum(0) // 7 % VOCABULARY

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        ix = torch.randint(len(data) - length - 1, (words.batch,), generator=generator)
        x = torch.stack([data[i : i + length] for i in ix])
        y = torch.stack([data[i + 1 : i + 1 + length] for i in ix])
        return x, y

    model = DDP(GPT(words.layers, words.width, 4, length))
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))

    for iter_num in range(words.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iter_num, 10, words.max_iters, 1e-3)
        for micro_step in range(words.accumulate):
            model.require_backward_grad_sync = micro_step == words.accumulate - 1
            x, y = get_batch()
            loss = model(x, y) / words.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if iter_num % 10 == 0 and rank == 0:
            print(f"iter {iter_num}: loss {loss.item() * words.accumulate:.4f}", flush=True)
    destroy_process_group()


if __name__ == "__main__":
    main()
