"""Compare corrections for the staleness of pipelined SGD: held-out loss after equal steps, simulated.

    python bench/pipe_corrections.py --data-dir DIR --text FILE    # one core; hours, most of them the GPT's
    python bench/pipe_corrections.py --tasks digits,digits-split,digits-adamw    # minutes

Four workers train with K = 2 steps in flight, unless ``--pipeline`` sets another K. All methods of a seed
have the same initial weights and the same batches, and the gradients in flight after the last step are
applied before the loss is evaluated. ``pipe_variants.py`` describes the methods and their sources;
``docs/pipe_corrections.md`` has the results. The constant of delay compensation is the best of ``STRENGTHS``
on the first seed's held-out data, which favours that method.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

from gradwire_lab.experiments.tasks import GPT, wide_layers
from gradwire_lab.job.batches import build
from gradwire_lab.job.data import load
from pipe_variants import (  # type: ignore[import-not-found]  # next to this script, not on a path
    SGD,
    AdamW,
    AdaptivelyDelayed,
    Delayed,
    Eager,
    Expected,
    Extrapolate,
    Matched,
    Predict,
    Replace,
    Shift,
    Slower,
    Spike,
    Stale,
    Synchronous,
    Task,
)

WORKERS = 4
BATCH, CONTEXTS, CONTEXT = 25, 12, 64
"""Numbers per worker and step: images, or contexts of text, and the bytes of a context."""
NOISY_BATCH, EXPECTING, HELD_OUT = 8, 512, 1000
"""Numbers of images of the noisy task: per worker and step, for the expected gradient, and held out."""
HELD_OUT_CONTEXTS, AT_ONCE = 256, 32
STRENGTHS = {"dc": (0.04, 100.0, 1e4), "dc-a": (2.0, 20.0, 200.0)}
"""The lambdas to try, from the published 0.04 and 2 (Zheng et al.) up to values that have an effect."""

Words = argparse.Namespace
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def images(
    words: Words,
    seed: int,
    *,
    title: str,
    optimizer: Any,
    lr: float,
    steps: int = 60,  # with more steps, the model overfits the digits, which dominates the held-out loss
    mnist: bool = False,
    normalised: bool = True,
    split: bool = False,
) -> Task:
    """Return the task of an MLP with two hidden layers of 500.

    ``split`` gives each rank its own classes. Unnormalized pixels of MNIST are from 0 to 1, for which the
    loss is less steep.
    """
    folder = words.data_dir if mnist else None
    data = load("digits") if folder is None else load("mnist", folder)
    if folder is not None and not normalised:
        data = replace(data, mean=0.0, std=255.0)
    if mnist and folder is None:
        title += ", on digits for want of --data-dir"
    model = build("mlp", data.image_shape, data.classes, seed)

    def drawn(rank: int) -> Batches:
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        mine = torch.arange(len(data.train_labels))
        if split:
            mine = mine[data.train_labels % WORKERS == rank]
        while True:
            yield data.train_batch(mine[torch.randint(len(mine), (BATCH,), generator=generator)])

    held_out = list(data.test_batches(len(data.test_labels)))
    batches = [drawn(rank) for rank in range(WORKERS)]
    return Task(title, model, _flat(model), batches, held_out, optimizer, lambda _: lr, steps)


def wide(words: Words, seed: int, *, title: str, rate: float) -> Task:
    """Return the task of the 74 MB MLP of ``training-speed``: batches of 8, so noisy gradients."""
    data = load("digits") if words.data_dir is None else load("mnist", words.data_dir)
    model = wide_layers(data, seed)

    def drawn(stream: int, count: int) -> Batches:
        generator = torch.Generator().manual_seed(stream)
        while True:
            yield data.train_batch(torch.randint(len(data.train_labels), (count,), generator=generator))

    batches = [drawn(1000 * seed + rank, NOISY_BATCH) for rank in range(WORKERS)]
    held_out = [next(data.test_batches(HELD_OUT))]
    task = Task(title, model, _flat(model), batches, held_out, SGD(0.0), lambda _: rate, 60)
    return replace(task, expecting=drawn(-seed, EXPECTING))


def gpt(words: Words, seed: int, *, title: str, lr: float) -> Task:
    """Return the task of a GPT of 0.87 M parameters on a text, shaped as nanoGPT's example for CPUs."""
    topics = "\n".join(pydoc_data.topics.topics.values()).encode()
    read = topics if words.text is None else words.text.read_bytes()
    data = torch.frombuffer(bytearray(read), dtype=torch.uint8).long()
    cut = len(data) * 9 // 10
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT(width=128, layers=4, heads=4)
    model.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def drawn(part: torch.Tensor, count: int, stream: int) -> Batches:
        generator = torch.Generator().manual_seed(stream)
        while True:
            places = torch.randint(len(part) - CONTEXT, (count, 1), generator=generator)
            pieces = part[places + torch.arange(CONTEXT + 1)]
            yield pieces[:, :-1], pieces[:, 1:]

    batches = [drawn(data[:cut], CONTEXTS, 1000 * seed + rank) for rank in range(WORKERS)]
    judged = drawn(data[cut:], AT_ONCE, 0)
    held_out = [next(judged) for _ in range(HELD_OUT_CONTEXTS // AT_ONCE)]
    optimizer = AdamW(decay=0.01)
    return Task(title, model, _flat(model), batches, held_out, optimizer, lambda _: lr, 240, max_norm=1.0)


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


MOMENTUM, ADAM = SGD(0.9), AdamW(decay=0.0)
MNIST = partial(images, mnist=True, steps=400)
TASKS: dict[str, Callable[[Words, int], Task]] = {
    "mnist": partial(
        MNIST, title="MNIST, lr 0.1, momentum 0.9", optimizer=MOMENTUM, lr=0.1, normalised=False
    ),
    "mnist-steep": partial(MNIST, title="MNIST normalised, lr 0.1, momentum 0.9", optimizer=MOMENTUM, lr=0.1),
    "mnist-adam": partial(MNIST, title="MNIST, Adam 3e-3", optimizer=ADAM, lr=3e-3, normalised=False),
    "gpt": partial(gpt, title="GPT, AdamW 1e-3", lr=1e-3),
    "gpt-fast": partial(gpt, title="GPT, AdamW 4e-3", lr=4e-3),
    "wide": partial(wide, title="74 MB MLP on MNIST, batches of 8, lr 0.05", rate=0.05),
    "digits": partial(images, title="digits, lr 0.1, momentum 0.9", optimizer=MOMENTUM, lr=0.1),
    "digits-split": partial(
        images, title="digits, classes split, lr 0.1, momentum 0.9", optimizer=MOMENTUM, lr=0.1, split=True
    ),
    "digits-adamw": partial(images, title="digits, AdamW 3e-3", optimizer=AdamW(decay=0.01), lr=3e-3),
}

METHODS: dict[str, Callable[[Task, int], Stale]] = {
    "sync": Synchronous,
    "none": Stale,
    "eager": Eager,
    "matched": Matched,
    "expected": Expected,
    "shift": Shift,
    "replace": Replace,
    "extrapolate": Extrapolate,
    "predict": Predict,
    "spike": Spike,
    "slower": Slower,
    **{f"dc {each:g}": partial(Delayed, strength=each) for each in STRENGTHS["dc"]},
    **{f"dc-a {each:g}": partial(AdaptivelyDelayed, strength=each) for each in STRENGTHS["dc-a"]},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated; default: %(default)s")
    parser.add_argument(
        "--methods", help=f"methods besides sync and none: {', '.join(METHODS)}; dc means all lambdas"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="steps of every task; by default, the task's own")
    parser.add_argument("--pipeline", type=int, default=2, help="K, the iteration dependency")
    parser.add_argument(
        "--data-dir", type=Path, help="folder of MNIST's four files; by default, scikit-learn's digits"
    )
    parser.add_argument(
        "--text", type=Path, help="a text for the GPT; by default, Python's language reference"
    )
    parser.add_argument("--json", type=Path, help="write every loss to this file")
    words = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for name in words.tasks.split(","):
        runs = measure(name, words)
        found.append({"task": name, "pipeline": words.pipeline, "runs": runs})
        report(make(name, words, 1), runs)
        if words.json:
            words.json.write_text(json.dumps(found, indent=1))


def make(name: str, words: Words, seed: int) -> Task:
    """Return a task in its initial state."""
    task = TASKS[name](words, seed)
    return task if words.steps is None else replace(task, steps=words.steps)


def measure(name: str, words: Words) -> list[dict[str, Any]]:
    """Train one task with the methods that apply to it; return their losses, one per seed."""
    wanted = {"sync", "none", *(words.methods.split(",") if words.methods else METHODS)}
    runs: dict[str, dict[str, Any]] = {}

    def train(method: str, seed: int) -> None:
        task = make(name, words, seed)
        trained = METHODS[method](task, words.pipeline)
        loss = task.held_out_loss(trained.train())
        loss = loss if isfinite(loss) else inf  # the run diverged
        run = {"memory": trained.extra_memory(), "updates": trained.extra_updates(), "losses": []}
        runs.setdefault(method, {"method": method, **run})["losses"].append(loss)
        print(f"measured: {name}, {method}, seed {seed}: loss {loss:.4g}", file=sys.stderr, flush=True)

    task = TASKS[name](words, 1)
    chosen = [each for each in METHODS if {each, each.split()[0]} & wanted and _suits(each, task)]
    for method in chosen:
        train(method, 1)
    for family, strengths in STRENGTHS.items():
        tried = [each for each in chosen if each in [f"{family} {strength:g}" for strength in strengths]]
        losers = sorted(tried, key=lambda each: runs[each]["losses"][0])[1:]
        chosen = [each for each in chosen if each not in losers]
    for seed in range(2, words.seeds + 1):
        for method in chosen:
            train(method, seed)
    return list(runs.values())


def _suits(method: str, task: Task) -> bool:
    if method == "spike":
        return isinstance(task.optimizer, SGD) and task.optimizer.momentum > 0
    return method != "expected" or task.expecting is not None


def report(task: Task, runs: list[dict[str, Any]]) -> None:
    """Print one task; ``inf`` means diverged, and a lambda rejected after the first seed has no row."""
    most = max(len(run["losses"]) for run in runs)
    kept = {run["method"]: run for run in runs if len(run["losses"]) == most}
    sync, none = (mean(kept[name]["losses"]) for name in ("sync", "none"))
    print(
        f"\n{task.title}: {len(task.weights) / 1e6:.2f} M parameters, {task.steps} steps, {most} seeds\n"
        f"{'method':12s}  held-out loss  lowest  highest   of the gap   extra memory  extra updates"
    )
    # Without a gap, a share of the gap is meaningless.
    is_gap = max(kept["sync"]["losses"]) < min(kept["none"]["losses"])
    for name, run in kept.items():
        losses = run["losses"]
        closed = (
            f"{(none - mean(losses)) / (none - sync):.0%}" if is_gap and none + mean(losses) < inf else "-"
        )
        print(
            f"{name:12s} {mean(losses):14.3f} {min(losses):7.3f} {max(losses):8.3f} {closed:>11s} "
            f"{run['memory']:10d} models {run['updates']:14d}",
            flush=True,
        )


if __name__ == "__main__":
    main()
