"""Step time and time to equal loss on a testbed: plain DDP, the hooks that PyTorch ships, and gradwire.

    python bench/training_speed.py --data-dir DIR    # root or user namespaces, ip, tc; about 20 minutes
    python bench/training_speed.py --tasks mnist-mlp --rates 100mbit,1gbit,10gbit

Every method starts from the same weights and sees the same batches. The other methods train until they reach
the held-out loss of plain DDP at its end; evaluations aren't timed. ``alone`` exchanges nothing and
shows how long a step's computation takes if all hosts compute at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.cli.demo import KEPT_MEMORY
from gradwire.codecs import parse
from gradwire.job.equal_loss import reach
from gradwire.plan import Plan
from gradwire.planner import Workload, choose_plan
from testbed_ranks import MOST_STOLEN, Ranks, append, cores, median, run_bed, stolen_s
from training_methods import Method, OnDDP, Pipelined, attached, torch_methods
from training_tasks import TASKS, Task

CODECS = ["bf16", "errbound:rel=0.05", "errbound:rel=0.25,block=1024", "fp8", "quantize:8", "quantize:4"]
"""What the planner may choose from: codecs that suit gradients of any scale."""
NAMED = ["fp8", "quantize:4"]
"""What a user might choose; the first one is the default."""
EQUAL = 1.01
"""Losses are equal that differ by less: another order of summation makes as much of a difference."""
PATIENCE = 2
"""A method that needs more than so many times DDP's steps has not reached the loss."""
COUNTED = 4
"""Blocks that any method trains at least, so that its step time is a median."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rates", default="1gbit", help="comma-separated; 'unlimited' has no limit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--methods", help="only those whose names hold one of these comma-separated words")
    parser.add_argument("--data-dir", type=Path, help="the four files of MNIST; else scikit-learn's digits")
    parser.add_argument("--text", type=Path, help="a text for the GPT; else Python's language reference")
    parser.add_argument("--json", type=Path, help="keep every block")
    words = parser.parse_args()
    if words.as_rank:
        measure_here(words)
        return
    runs: list[dict[str, Any]] = []
    told = [part for name in ("data_dir", "text") if getattr(words, name) for part in _option(name, words)]
    told += ["--methods", words.methods] if words.methods else []
    for rate in words.rates.split(","):
        for task in words.tasks.split(","):
            arguments = ("--tasks", task, *told)
            found = run_bed(words.hosts, rate, __file__, *arguments, variables=KEPT_MEMORY)
            runs += [{**run, "rate": rate} for run in found]
            report([run for run in runs if (run["rate"], run["task"]) == (rate, found[0]["task"])])
    if words.json:
        words.json.write_text(json.dumps(runs, indent=1))


def _option(name: str, words: argparse.Namespace) -> list[str]:
    return [f"--{name.replace('_', '-')}", str(getattr(words, name).absolute())]


def measure_here(words: argparse.Namespace) -> None:
    """Train the task with every method, on the network that this process is in."""
    ranks = Ranks()
    dist.barrier()

    def new_task() -> Task:
        return TASKS[words.tasks](ranks.rank, ranks.world, words.data_dir, words.text)

    methods: dict[str, Callable[[Task], Method]] = {"alone": partial(OnDDP, exchanging=False)}
    methods |= torch_methods()
    task = new_task()
    for name, plan in plans(ranks, task).items():
        methods[name] = partial(Pipelined if plan.pipeline > 1 else attached, plan=plan)
    stale = Plan(parse(NAMED[0]), pipeline=2)
    methods[f"{NAMED[0]} PipeSGD, stale"] = partial(Pipelined, plan=stale, correction="none")
    methods["DDP again"] = OnDDP
    wanted = words.methods.split(",") if words.methods else [""]
    target = None
    for name, start in methods.items():
        if name not in ("alone", "DDP") and not any(word in name for word in wanted):
            continue
        task = new_task()
        judged = name not in ("alone", "DDP again")
        run = train(ranks, start(task), task, target if judged else float("inf"))
        if name == "DDP":
            target = run["curve"][-1][2] * EQUAL
        if ranks.rank == 0:
            append(words.as_rank, {"task": task.name, "method": name, **run})
    ranks.leave()


def plans(ranks: Ranks, task: Task) -> dict[str, Plan]:
    """Return gradwire's plans by their names: the planner's, and some that a user would name."""
    forward_s, backward_s, update_s, gradient = computation(task)
    environment = ranks.environment(["identity", *CODECS], samples=[gradient])
    found: dict[str, Plan] = {}
    if environment is not None:
        counts = tuple(each.numel() for each in task.model.parameters())
        workload = Workload(counts, forward_s, backward_s, update_s)
        for name, pipeline in (("planned, on DDP", 1), ("planned, PipeSGD", 2)):
            choice = choose_plan(
                workload,
                ranks.world,
                line=environment.line,
                host=environment.host,
                costs=environment.codecs,
                codecs=CODECS,
                pipelines=(pipeline,),
                shared_machine=True,
            )
            plan = choice.plan
            segment = "" if plan.algorithm == "backend" else f" {plan.segment_nbytes >> 10}K"
            found[f"{name}: {plan.codec} {plan.algorithm}{segment}"] = plan
    for codec in NAMED:
        found[f"{codec} on DDP"] = Plan(parse(codec), bucket_nbytes=25 << 20)
        found[f"{codec} PipeSGD"] = Plan(parse(codec), pipeline=2)
    everyones: dict[str, Plan] = ranks.gather(found)[0]
    return everyones


def computation(task: Task) -> tuple[float, float, float, torch.Tensor]:
    """Return seconds of forward, backward and update when all hosts compute at once, and a gradient."""
    optimizer = task.optimizer(task.model)
    spent = []
    for _ in range(5):
        optimizer.zero_grad()
        dist.barrier()
        began = time.perf_counter()
        loss = task.loss(task.model, next(task.batches))
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        gradient = torch.cat(
            [each.grad.flatten() for each in task.model.parameters() if each.grad is not None]
        )
        updating = time.perf_counter()
        optimizer.step()
        spent.append((forward - began, backward - forward, time.perf_counter() - updating))
    forward_s, backward_s, update_s = (median(list(times)) for times in zip(*spent[1:], strict=True))
    return forward_s, backward_s, update_s, gradient


def train(ranks: Ranks, method: Method, task: Task, target: float | None) -> dict[str, Any]:
    """Train until the held-out loss is ``target``, or for as many blocks as DDP; return the curve."""
    curve: list[tuple[int, float, float]] = []
    blocks: list[tuple[float, float]] = []
    most = task.blocks if target is None else PATIENCE * task.blocks
    if target == float("inf"):
        most = COUNTED
    total_s = 0.0
    for number in range(1, most + 1):
        dist.barrier()
        began, stolen = time.perf_counter(), stolen_s()
        method.train(task.block)
        spent_s = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
        share = (stolen_s() - stolen) / float(spent_s) / cores()
        dist.all_reduce(spent_s, dist.ReduceOp.MAX)
        total_s += float(spent_s)
        loss = ranks.gather(task.held_out_loss(method.model) if ranks.rank == 0 else None)[0]
        curve.append((number * task.block, total_s, loss))
        blocks.append((share, float(spent_s) / task.block))
        if target is not None and loss <= target and number >= COUNTED:
            break
    method.close()
    local_s = method.local_s / (task.block * len(curve))
    later = sorted(blocks[1:])  # the first one connects, and cuts buckets anew
    calm = [seconds for share, seconds in later if share <= MOST_STOLEN] or [
        seconds for _, seconds in later[:3]
    ]
    return {"step_s": median(calm), "curve": curve, "blocks": blocks, "local_s": local_s}


def report(runs: list[dict[str, Any]]) -> None:
    """Print one task at one rate."""
    by_name = {run["method"]: run for run in runs}
    ddp, alone = by_name["DDP"], by_name["alone"]
    target = ddp["curve"][-1][2] * EQUAL
    first = reach(ddp["curve"], target)
    assert first is not None
    share = 1 - alone["step_s"] / ddp["step_s"]
    print(
        f"\n{ddp['task']}, {ddp['rate']}: of DDP's step {share:.0%} are communication; the loss to reach is "
        f"{target:.4f}\n"
        f"{'method':46s}   step ms  of DDP's   steps to the loss   seconds  faster than DDP"
    )
    for name, run in by_name.items():
        line = f"{name:46s} {run['step_s'] * 1e3:9.1f} {ddp['step_s'] / run['step_s']:8.2f}x"
        judged = name not in ("alone", "DDP again")
        found = reach(run["curve"], target) if judged else None
        if found is not None:
            line += f" {found[0]:19.0f} {found[1]:9.1f} {first[1] / found[1]:15.2f}x"
        elif judged:
            line += f"   not in {run['curve'][-1][0]} steps ({run['curve'][-1][2]:.4f})"
        if run["local_s"]:
            line += f"   (local update {1e3 * run['local_s']:.1f} ms)"
        print(line, flush=True)


if __name__ == "__main__":
    main()
