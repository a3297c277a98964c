"""Measure the effect of each codec on a model: the loss after training, compared with plain DDP.

    python bench/codec_losses.py                  # a GPT of 4 layers of 128, two ranks; about half an hour
    python bench/codec_losses.py --text FILE --steps 200 --codecs "default quantize:4"
    python bench/codec_losses.py --model columns  # a table whose columns have different scales; a minute
    python bench/codec_losses.py --small --ranks 4 --steps 200  # a GPT of 3 layers of 64; ten minutes
    python bench/codec_losses.py --ranks 8 --algorithm pairwise --seeds 3 --brief --codecs "ecsq:1,sum=0.5"

All rows of a seed have the same initial weights and the same batches; only the exchange of gradients differs.
Rows of DDP with weights that differ in the last bits, and with different batches, show the noise in the loss.
The relative encoding error is measured on one rank; with a residual, later steps send this error. With
several seeds, the last rows show each codec's mean, smallest, and largest difference.
"""

from __future__ import annotations

import argparse
import json
import math
import pydoc_data.topics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.attached import Attached
from gradwire.plan import Plan
from gradwire_lab.experiments.auto.runs import draw_rows
from gradwire_lab.job.on_ddp import bf16_hook

CODECS = (
    "default ecsq:0.25 ecsq:0.5 ecsq:1 quantize:4 errbound:rel=0.05 errbound:rel=0.25 "
    "errbound:rel=0.25,block=1024 errbound:2^-10 errbound:2^-20 inceptionn:2^-10 bfp:7x16 bf16 truncate:16 "
    "topk:0.01 terngrad identity"
)
WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 128, 4, 4, 64, 12
BETAS, DECAY, CLIP = (0.9, 0.99), 0.1, 1.0
HELD_OUT = 400
"""Held-out contexts, the same for all rows: more than enough to distinguish losses that differ by 0.1 %."""
Batch = tuple[torch.Tensor, torch.Tensor]


class Lesson(ABC):
    """A task to learn: a model, each rank's batches, and an evaluation."""

    rate: float

    @abstractmethod
    def model(self) -> nn.Module:
        """Return the model, initialized from torch's current seed."""

    @abstractmethod
    def batch(self, generator: torch.Generator) -> Batch:
        """Draw a batch."""

    @abstractmethod
    def held_out(self) -> Sequence[Batch]:
        """Return held-out batches of equal size."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean loss of a batch."""

    def judge(self, model: nn.Module, rank: int, world: int) -> float:
        """Return the mean held-out loss; each rank evaluates its share."""
        batches = self.held_out()[rank::world]
        with torch.no_grad():
            losses = [float(self.loss(model, batch)) for batch in batches]
        total = torch.tensor([sum(losses), len(losses)], dtype=torch.float64)
        dist.all_reduce(total)
        return float(total[0] / total[1])


class Characters(Lesson):
    """The characters of a text: nine tenths for training, the rest held out."""

    rate = 1e-3

    def __init__(self, path: Path | None) -> None:
        text = "\n".join(pydoc_data.topics.topics.values()) if path is None else path.read_text("utf-8")
        kinds = {character: number for number, character in enumerate(sorted(set(text)))}
        data = torch.tensor([kinds[character] for character in text])
        cut = len(data) * 9 // 10
        self.training, self.rest, self.kinds = data[:cut], data[cut:], len(kinds)

    def model(self) -> nn.Module:
        """Return a GPT over the text's characters."""
        return GPT(self.kinds)

    def batch(self, generator: torch.Generator) -> Batch:
        """Draw contexts."""
        places = torch.randint(len(self.training) - CONTEXT, (BATCH,), generator=generator)
        return self._contexts(self.training, places)

    def held_out(self) -> Sequence[Batch]:
        """Return contexts evenly spaced over the held-out text."""
        places = torch.linspace(0, len(self.rest) - CONTEXT - 1, HELD_OUT).long()
        return [self._contexts(self.rest, some) for some in places.view(-1, 25)]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy of a batch."""
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    @staticmethod
    def _contexts(data: torch.Tensor, places: torch.Tensor) -> Batch:
        pieces = torch.stack([data[place : place + CONTEXT + 1] for place in places.tolist()])
        return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


class Columns(Lesson):
    """The task ``table`` of ``gradwire experiment auto``: rows whose columns have different scales."""

    rate = 1e-2

    def model(self) -> nn.Module:
        """Return a small MLP."""
        return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))

    def batch(self, generator: torch.Generator) -> Batch:
        """Draw rows of the table."""
        return draw_rows(32, generator)

    def held_out(self) -> Sequence[Batch]:
        """Draw rows that aren't used for training."""
        generator = torch.Generator().manual_seed(4)
        return [self.batch(generator) for _ in range(64)]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean squared error of a batch."""
        return nn.functional.mse_loss(model(batch[0]), batch[1])


class GPT(nn.Module):
    """A decoder-only transformer over characters, with output weights tied to its embeddings.

    Like nanoGPT (Karpathy, 2022): normal weights of standard deviation 0.02, smaller at the end of a residual
    branch, no biases, no dropout.
    """

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(kinds, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, kinds, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                ends_branch = name.endswith(("out_proj.weight", "linear2.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * LAYERS) if ends_branch else 0.02)
        self.out.weight = self.characters.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next character at every position."""
        x = self.characters(text) + self.places.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.out(self.norm(x))
        return logits


def attach(codec: str, algorithm: str, model: DistributedDataParallel) -> Attached:
    """Attach gradwire with a codec, ``default`` or ``SPEC+residual``, over an algorithm."""
    spec, _, residual = codec.partition("+")
    if codec == "default":
        return gradwire.attach(model, timeout_s=120.0)
    plan = Plan.of(spec, algorithm=algorithm, residual=True if residual else None)
    return gradwire.attach(model, plan, timeout_s=120.0)


def perturbed(model: DistributedDataParallel) -> None:
    """Change the weights in their last bits, as a different order of summation does from the first step."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 2**-23 * torch.randn(weight.shape, generator=generator))


def baselines(seed: int) -> dict[str, tuple[Callable[[DistributedDataParallel], object], int]]:
    """Return the rows without gradwire by name: a function to apply to the model, and the batches' seed."""
    return {
        "DDP": (lambda _: None, seed),
        "DDP, last bits of the weights differ": (perturbed, seed),
        "DDP, other batches": (lambda _: None, seed + 1),
        "DDP, bf16 hook": (bf16_hook, seed),
    }


@dataclass(frozen=True)
class Row:
    """The result of one training run with one codec."""

    codec: str
    loss: float
    seconds: float
    ratio: float | None = None
    lost: float | None = None
    warned: bool = False
    seed: int = 1


def train(
    name: str,
    register: Callable[[DistributedDataParallel], object],
    lesson: Lesson,
    steps: int,
    weights_seed: int,
    seed: int,
) -> Row:
    """Train from the weights of one seed with the batches of another seed, and evaluate."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(weights_seed)
    model = DistributedDataParallel(lesson.model())
    attached = register(model)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": DECAY},
            {"params": [weight for weight in weights if weight.dim() == 1], "weight_decay": 0.0},
        ],
        lr=lesson.rate,
        betas=BETAS,
    )
    warm_up = min(50, steps // 5)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (
            (step + 1) / warm_up
            if step < warm_up
            else 0.55 + 0.45 * math.cos(math.pi * (step - warm_up) / (steps - warm_up))
        ),
    )
    began = time.monotonic()
    for step in range(steps):
        generator = torch.Generator().manual_seed(1_000_000 * seed + 100 * step + rank)
        optimizer.zero_grad()
        lesson.loss(model, lesson.batch(generator)).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        schedule.step()
    spent_s = time.monotonic() - began
    loss = lesson.judge(model.module, rank, world)
    if not isinstance(attached, Attached):
        return Row(name, loss, spent_s, seed=weights_seed)
    summary = attached.ledger.summary()
    attached.close()
    lost, warned = summary.lost.total.mean, bool(summary.warnings)
    return Row(name, loss, spent_s, summary.total.cost.ratio, lost, warned, weights_seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["gpt", "columns"], default="gpt")
    parser.add_argument("--small", action="store_true", help="a smaller GPT, with 8 contexts per batch")
    parser.add_argument("--text", type=Path, help="a training text; by default Python's language reference")
    parser.add_argument(
        "--brief", action="store_true", help="omit the rows without gradwire, except plain DDP"
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--algorithm", default="ring", help="algorithm of all rows but 'default', which chooses one"
    )
    parser.add_argument("--seeds", type=int, default=1, help="training runs of every row")
    parser.add_argument(
        "--codecs", default=CODECS, help="codecs, separated by spaces; SPEC+residual uses error feedback"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawn(run_rank, (folder, words), words.ranks)  # type: ignore[no-untyped-call]


def run_rank(rank: int, folder: str, words: argparse.Namespace) -> None:
    """Train every row in one process group; rank 0 prints each row when it is finished."""
    if words.small:
        globals().update(WIDTH=64, LAYERS=3, BATCH=8, HELD_OUT=200)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=words.ranks)
    lesson = Characters(words.text) if words.model == "gpt" else Columns()
    rows: list[Row] = []
    for seed in range(1, words.seeds + 1):
        trainings: dict[str, Any] = dict(list(baselines(seed).items())[: 1 if words.brief else None])
        for codec in words.codecs.split():
            trainings[codec] = (lambda model, codec=codec: attach(codec, words.algorithm, model)), seed
        for name, (register, batches) in trainings.items():
            rows.append(train(name, register, lesson, words.steps, seed, batches))
            if rank == 0:
                report(rows)
                keep(rows, words.json)
    if rank == 0 and words.seeds > 1:
        compare(rows)
    dist.destroy_process_group()


def keep(rows: list[Row], path: Path | None) -> None:
    """Write the rows so far to a file, if a path is given."""
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def baseline(rows: list[Row], row: Row) -> float:
    """Return the loss of plain DDP from the same initial weights."""
    return next(other.loss for other in rows if (other.codec, other.seed) == ("DDP", row.seed))


def compare(rows: list[Row]) -> None:
    """Print each codec's mean, smallest, and largest difference over the seeds."""
    for name in dict.fromkeys(row.codec for row in rows):
        same = [row for row in rows if row.codec == name]
        changes = [row.loss / baseline(rows, row) - 1 for row in same]
        ratios = [row.ratio for row in same if row.ratio is not None]
        ratio = f"{sum(ratios) / len(ratios):.2f}x" if ratios else ""
        mean = sum(changes) / len(changes)
        print(f"{name:38s} {mean:+8.2%} ({min(changes):+.2%} to {max(changes):+.2%}) {ratio:>8s}", flush=True)


def report(rows: list[Row]) -> None:
    """Print the last row, after the header if the row is the first."""
    row = rows[-1]
    if len(rows) == 1:
        print(f"{'codec':38s}     loss   to DDP    bytes  lost of the norm  seconds")
    change = f"{row.loss / baseline(rows, row) - 1:+8.2%}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
    lost = "" if row.lost is None else f"{row.lost:.2%}"
    told = "  warned" if row.warned else ""
    print(
        f"{row.codec:38s} {row.loss:8.4f} {change} {ratio:>8s} {lost:>17s} {row.seconds:8.1f}{told}",
        flush=True,
    )


if __name__ == "__main__":
    main()
