"""The GPT of ``examples/plain_gpt.py`` in float32, larger, and trained on numbers instead of text.

This script doesn't use gradwire: torchrun --nproc-per-node 2 bench/profiled/gpt_train.py
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as in nanoGPT

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.plain_gpt import GPT, VOCABULARY, get_lr


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
