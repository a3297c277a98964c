"""A GPT in the shape of nanoGPT's train.py, without gradwire: gradwire run -- torchrun ... plain_gpt.py.

It has DDP, gradient accumulation, autocast to bfloat16, clipping, AdamW with decay, and evaluation on rank 0.
The text is the source code of Python's standard library, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as in nanoGPT

VOCABULARY, MODULES = 256, ("argparse", "ast", "calendar", "datetime", "inspect", "tarfile", "typing")


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


def text() -> torch.Tensor:
    """Return bytes of Python source code, as integers."""
    folder = Path(argparse.__file__).parent
    data = b"".join((folder / f"{name}.py").read_bytes() for name in MODULES)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def get_lr(it: int, warmup: int, last: int, highest: float) -> float:
    """Return the learning rate of a step: a linear warm-up, then a cosine decay."""
    if it < warmup:
        return highest * (it + 1) / (warmup + 1)
    share = min(1.0, (it - warmup) / max(1, last - warmup))
    return 0.1 * highest + 0.45 * highest * (1 + math.cos(math.pi * share))


def main() -> None:
    """Train the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-iters", type=int, default=200)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--eval-interval", type=int, default=100)
    words = parser.parse_args()

    dist.init_process_group(backend="gloo")
    rank, length = dist.get_rank(), words.block_size
    torch.manual_seed(1337)
    generator = torch.Generator().manual_seed(1337 + rank)
    data = text()
    train, held_out = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]

    def get_batch(split: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ix = torch.randint(len(split) - length - 1, (words.batch,), generator=generator)
        x = torch.stack([split[i : i + length] for i in ix])
        y = torch.stack([split[i + 1 : i + 1 + length] for i in ix])
        return x, y

    model = DDP(GPT(words.layers, words.width, 4, length))
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))

    @torch.no_grad()
    def estimate_loss() -> float:
        model.eval()
        found = torch.stack([model(*get_batch(held_out)) for _ in range(8)]).mean().item()
        model.train()
        return found

    began = time.perf_counter()
    for iter_num in range(words.max_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iter_num, 10, words.max_iters, 1e-3)
        if iter_num % words.eval_interval == 0 and rank == 0:
            print(f"step {iter_num}: held-out loss {estimate_loss():.4f}", flush=True)
        if iter_num == words.max_iters:
            break
        for micro_step in range(words.accumulate):
            model.require_backward_grad_sync = micro_step == words.accumulate - 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(*get_batch(train)) / words.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if iter_num % 10 == 0 and rank == 0:
            seconds = time.perf_counter() - began
            print(f"iter {iter_num}: loss {loss.item() * words.accumulate:.4f}, {seconds:.1f} s", flush=True)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    print(f"rank {rank}: weights {hashlib.sha256(flat.tobytes()).hexdigest()[:16]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
