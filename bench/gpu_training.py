"""Train on this machine's GPU: two processes that share the GPU, and then a model with weights on the host.

First, two ranks train an MLP with ``DistributedDataParallel`` and Gloo: unchanged, with PyTorch's bfloat16
hook, and with gradwire. A trace of some steps counts the bytes that crossed the bus, and the host's waits for
a whole stream. Then one process trains the same model with ``HostOffload``, and after some more steps the
device's weights are compared with the master weights. The held-out loss is reported with each time.

``--device cpu`` runs the same without a GPU. This mode traces nothing, and measures no speed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.plan import Plan
from gradwire_lab.job.on_ddp import bf16_hook

RANKS, BATCH, INPUTS, CLASSES, HELD_OUT = 2, 256, 512, 10, 4096
TRACED, CHECKED = 3, 3
"""Numbers of traced steps and of checked steps, after the timed steps."""
SETTLED = 20
"""Number of steps before the timed steps; a later automatic choice is included in the times."""
SEGMENT_NBYTES = 1 << 24
"""A large segment, because a frame's cost on an accelerator hardly depends on its length."""
COARSE = "errbound:rel=0.25,block=1024"
POLICIES = ("static:32", "static:16", "static:8", "delta", "delta:fp32")
SYNCHRONISES = ("cudaStreamSynchronize", "cudaDeviceSynchronize")


def _attach(ddp: DistributedDataParallel, plan: Plan | None = None) -> object:
    return gradwire.attach(ddp, plan)


METHODS: dict[str, Callable[[DistributedDataParallel], object] | None] = {
    "DDP": None,
    "bf16 hook": bf16_hook,
    "auto": _attach,
    **{
        f"{spec.partition(':')[0]}, {place}": partial(
            _attach, plan=Plan(gradwire.parse(spec), encode_on=place, segment_nbytes=SEGMENT_NBYTES)
        )
        for spec in ("fp8", COARSE)
        for place in ("host", "device")
    },
}


def main(arguments: list[str] | None = None) -> int:
    args = parse_args(arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("This machine has no GPU that PyTorch sees, so nothing was measured; --device cpu needs none.")
        return 0
    name = torch.cuda.get_device_name() if args.device == "cuda" else "the CPU"
    count = sum(each.numel() for each in model(args).parameters())
    print(f"{name}, torch {torch.__version__}, an MLP of {count / 1e6:.1f} M weights, {args.steps} steps")
    print(f"{'two ranks':22} {'ms':>8} {'loss':>8} {'to device':>10} {'to host':>8} {'syncs':>6}")
    for method in args.methods or METHODS:
        with tempfile.TemporaryDirectory() as folder:
            spawn(train, (method, args, folder), nprocs=RANKS)  # type: ignore[no-untyped-call]
            print(Path(folder, "row").read_text(), flush=True)
    print("(per step of rank 0; bytes over the bus in multiples of the float32 gradients)\n")
    print(f"{'weights on the host':22} {'ms':>8} {'loss':>8} {'x fewer bytes':>14}")
    for policy in (None, *POLICIES):
        print(offloaded(policy, args), flush=True)
    print(
        f"(in {CHECKED} more steps, the weights on the device equalled the masters, rounded as by the policy)"
    )
    return 0


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "methods", nargs="*", help=f"methods of the two ranks; by default, all: {', '.join(METHODS)}"
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--hidden", type=int, default=2048, help="width of the MLP's three hidden layers")
    parser.add_argument("--steps", type=int, default=100, help="timed steps")
    args = parser.parse_args(arguments)
    if unknown := set(args.methods) - METHODS.keys():
        parser.error(
            f"expected one of this script's methods, got {', '.join(sorted(unknown))}; "
            f"choose from {', '.join(METHODS)}"
        )
    return args


def model(args: argparse.Namespace) -> nn.Module:
    """Return an MLP with the same weights in every process."""
    torch.manual_seed(1)
    sizes = [INPUTS, *[args.hidden] * 3]
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(args.hidden, CLASSES))


def batches(seed: int, size: int, device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs, and their classes according to a small network with random weights."""
    source = torch.Generator().manual_seed(7)
    first = torch.randn(INPUTS, 32, generator=source) / INPUTS**0.5
    last = torch.randn(32, CLASSES, generator=source)
    own = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(size, INPUTS, generator=own)
        yield x.to(device), ((x @ first).tanh() @ last).argmax(1).to(device)


def held_out_loss(trained: Callable[[torch.Tensor], torch.Tensor], device: str) -> float:
    x, y = next(batches(99, HELD_OUT, device))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(trained(x), y))


def step_times(step: Callable[[], object], steps: int, device: str) -> list[float]:
    """Return the seconds of each step, including all work that it queued."""
    times = []
    for _ in range(steps):
        began = perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return times


def train(rank: int, method: str, args: argparse.Namespace, folder: str) -> None:
    """Train as one of the ranks; rank 0 writes the row."""
    torch.set_num_threads(max((os.cpu_count() or 1) // RANKS, 1))
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    ddp = DistributedDataParallel(model(args).to(args.device), gradient_as_bucket_view=True)
    if (hook := METHODS[method]) is not None:
        hook(ddp)
    optimizer = torch.optim.AdamW(ddp.parameters(), 1e-3)
    own = batches(rank, BATCH, args.device)

    def step() -> None:
        x, y = next(own)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    times = step_times(step, SETTLED + args.steps, args.device)[SETTLED:]
    crossed = traced(lambda: step_times(step, TRACED, args.device), args.device)
    loss = held_out_loss(ddp.module, args.device)
    weights = torch.cat([each.detach().flatten().cpu() for each in ddp.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(RANKS)]
    dist.all_gather(gathered, weights)
    if not torch.equal(*(each.view(torch.int32) for each in gathered)):
        raise SystemExit(
            f"{method}: expected identical weights on all ranks, got different weights; "
            "please report this bug"
        )
    if rank == 0:
        floats = 4 * weights.numel() * TRACED
        shares = (f"{crossed[way] / floats:.2f}" for way in ("HtoD", "DtoH"))
        to_device, to_host = shares if args.device == "cuda" else ("", "")
        # Each traced step ends with one wait for the device, as each timed step does.
        syncs = str(round(crossed["syncs"] / TRACED) - 1) if args.device == "cuda" else ""
        row = f"{median(times) * 1e3:8.2f} {loss:8.4f} {to_device:>10} {to_host:>8} {syncs:>6}"
        Path(folder, "row").write_text(f"{method:22} {row}")
    dist.barrier()
    dist.destroy_process_group()


def traced(steps: Callable[[], object], device: str) -> Counter[str]:
    """Return the bytes of copies in each direction, and the number of the host's waits for a stream."""
    counted: Counter[str] = Counter()
    if device == "cpu":
        steps()
        return counted
    with torch.profiler.profile() as profile:
        steps()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    for event in events:
        if event.get("cat") == "gpu_memcpy":
            for way in ("HtoD", "DtoH"):
                counted[way] += event["args"]["bytes"] if way in event["name"] else 0
        counted["syncs"] += event.get("name") in SYNCHRONISES
    return counted


def offloaded(policy: str | None, args: argparse.Namespace) -> str:
    """Train with the weights on the host or, without a policy, on the device; return the row."""
    masters = model(args)
    if policy is None:
        masters = masters.to(args.device)
    optimizer = torch.optim.AdamW(masters.parameters(), 3e-5, fused=policy is None)
    offload = None
    if policy is not None:
        offload = gradwire.HostOffload(masters, optimizer, policy, device=args.device)
    own = batches(0, BATCH, args.device)

    def step() -> None:
        x, y = next(own)
        optimizer.zero_grad()
        nn.functional.cross_entropy((offload or masters)(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def check() -> None:
        assert offload is not None
        offload.wait()
        for here, there in zip(masters.parameters(), offload.replica.parameters(), strict=True):
            if not torch.equal(rounded(here.detach(), policy or ""), there.detach().float().cpu()):
                raise SystemExit(
                    f"{policy}: expected the rounded master weights on the device, got different weights; "
                    "please report this bug"
                )

    times = step_times(step, SETTLED + args.steps, args.device)[SETTLED:]
    if offload is not None:
        for _ in range(CHECKED):
            step()
            check()
    row = f"{policy or 'weights on the device':22} {median(times) * 1e3:8.2f}"
    row += f" {held_out_loss(offload or masters, args.device):8.4f}"
    if offload is not None:
        row += f" {offload.ledger.ratio:14.2f}"
        offload.close()
    return row


def rounded(weights: torch.Tensor, policy: str) -> torch.Tensor:
    """Return the weights expected on the device for these master weights."""
    if weights.dim() == 1 or policy in ("static:32", "delta:fp32"):
        return weights
    if policy == "delta":
        return weights.bfloat16().float()
    kept = int(policy.partition(":")[2])
    return (weights.view(torch.int32) & (-1 << (32 - kept))).view(torch.float32)


if __name__ == "__main__":
    sys.exit(main())
