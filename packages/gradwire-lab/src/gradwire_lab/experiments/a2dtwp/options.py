"""Options of the experiment ``a2dtwp``: networks, policies, links, and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import SpecError
from gradwire_lab.experiments.experiment import FOLDER, Cell, CheckedOptions, check_known, option, turned

DIGITS, CIFAR10, CIFAR100 = "digits", "cifar10", "cifar100"
MODELS = ("alexnet", "vgg", "resnet")
NORMALISED = {"alexnet-bn": "alexnet", "vgg-bn": "vgg"}
"""The networks with batch normalization, which table I lacks, and their originals without normalization."""
NETWORKS = (*MODELS, *NORMALISED)
STUCK = {
    "alexnet": (
        "in short float32 runs, two of three seeds stayed at chance for 400 batches, and the "
        "published initial weights led to NaN"
    )
}
"""The networks that aren't expected to learn in so few batches, and why; only float32 trains them."""
FP32, BF16, AWP = "fp32", "bf16", "awp"
STATIC = {8: "static:8", 16: "static:16", 24: "static:24", 32: FP32}
"""The policies that truncate weights, by their bits: the oracle's candidates."""
DELTAS = ("delta", "delta:fp32")
POLICIES = (FP32, BF16, "static:8", "static:16", "static:24", AWP, *DELTAS)
TRAINS_AS = {"delta": BF16, "delta:fp32": FP32}
"""Each lossless policy, and the policy with the same weights on the device, whose training run it shares."""
AWP_FORMATS = {f"awp:{bits}": bits for bits in STATIC}
"""Policies with AWP's norms and fixed bits: AWP's batch times are interpolated between their times."""
TIMED = (FP32, BF16, "static:8", "static:16", "static:24", *AWP_FORMATS, *DELTAS)


@dataclass(frozen=True)
class System:
    """A published system: milliseconds of a batch of VGG in float32 (tables II and III); 0 is no time."""

    compute_ms: float
    """The milliseconds of forward and backward, in convolutions and fully connected layers."""
    to_device_ms: float
    to_host_ms: float


UNLIMITED = "unlimited"
"""An infinitely fast link. The savings on this link are an upper bound for any policy on any other link."""
SYSTEMS = {
    "x86": System(162.23, 153.93, 68.51),
    "power": System(82.44, 39.12, 17.34),
    UNLIMITED: System(1.0, 0.0, 0.0),
}
LINKS = ("x86", "power")
"""The systems whose links are simulated when batches are timed."""
LONGER, TRAINING, PACE, BATCH = "longer", "training", "pace", "batch"
"""The kinds of cells: a longer run's accuracy, a run's errors and bits, computation, and a timed batch."""
LONGER_SEED, TIMES_LONGER = 0, 2
"""The seed of the longer float32 training runs, which show what is reachable, and their relative length."""


@dataclass(frozen=True)
class A2dtwpOptions(CheckedOptions):
    """The options; batch sizes are the paper's, and AWP's INTERVAL is half an epoch."""

    data_dir: Path | None = option(
        None,
        "folder of the data set (CIFAR-10 or CIFAR-100)",
        shown="$GRADWIRE_DATA, else scikit-learn's digits",
        value=FOLDER,
    )
    networks: tuple[str, ...] = option(NETWORKS, "models, to train", name="--models", known=NETWORKS)
    policies: tuple[str, ...] = option(POLICIES, "policies for sending weights", known=POLICIES)
    seeds: tuple[int, ...] = option((1, 2, 3), "seeds of the training runs", name="--seed-list", least=1)
    images: int = option(6400, "maximum number of training images", name="--max-images", least=2)
    batches: int = option(1800, "batches of each run", least=10)
    narrower: int = option(8, "divisor of the paper's channels, in training runs", least=1)
    timed: tuple[str, ...] = option(MODELS, "full-size networks to time")
    timed_batches: int = option(3, "timed batches per link and repetition", least=1)
    timed_size: int = option(2, "images in a timed batch", least=2)
    timed_rounds: int = option(3, "timed repetitions of all policies", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("--timed", self.timed or MODELS, MODELS)
        if self.narrower > 64 or 64 % self.narrower:
            raise SpecError(f"expected a divisor of 64 for --narrower, got {self.narrower}; pass e.g. 8")
        if all(cell["kind"] != TRAINING for cell in cells(self)):
            raise SpecError(
                f"expected {FP32} in --policies, because only {FP32} trains {', '.join(self.networks)}, got "
                f"{', '.join(self.policies)}; add {FP32}"
            )


def cells(options: A2dtwpOptions) -> list[Cell]:
    """Return a cell for each training run, longer ones first, and for each timed repetition of a policy.

    Policies with the same bits on the device share a training run. Each repetition starts with a different
    policy, so that a machine that becomes slower favours no policy.
    """
    trained = dict.fromkeys(TRAINS_AS.get(each, each) for each in options.policies)
    trainings = [
        {"kind": TRAINING, "model": model, "policy": policy, "seed": seed}
        for model in options.networks
        for seed in options.seeds
        for policy in trained
        if model not in STUCK or policy == FP32
    ]
    longer = [{"kind": LONGER, "model": model} for model in options.networks if model not in STUCK]
    timed = [
        {"kind": BATCH, "model": model, "round": number, "policy": policy}
        for model in options.timed
        for number in range(options.timed_rounds)
        for policy in turned(TIMED, number, options.timed_rounds)
    ]
    return [*longer, *trainings, *([{"kind": PACE}] if timed else []), *timed]
