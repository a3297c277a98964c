"""Options of the experiment: networks, policies, links, and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gradwire.errors import SpecError
from gradwire_lab.experiments.experiment import Cell, turned
from gradwire_lab.experiments.options import FOLDER, CheckedOptions, check_known, option

DIGITS, CIFAR10, CIFAR100 = "digits", "cifar10", "cifar100"
"""Names of the images."""
MODELS = ("alexnet", "vgg", "resnet")
NORMALISED = MappingProxyType({"alexnet-bn": "alexnet", "vgg-bn": "vgg"})
"""Networks with batch normalization that table I doesn't have, and the same ones without."""
NETWORKS = (*MODELS, *NORMALISED)
STUCK = MappingProxyType(
    {
        "alexnet": "in short runs of float32 alone, two of three seeds stayed at chance for 400 batches, and "
        "with the published first weights its numbers became NaN"
    }
)
"""Networks that aren't expected to learn in so few batches, and why. Only float32 trains them."""
FP32, BF16, AWP = "fp32", "bf16", "awp"
STATIC = MappingProxyType({8: "static:8", 16: "static:16", 24: "static:24", 32: FP32})
"""Policies that cut weights off, by their bits: what the oracle chooses from."""
DELTAS = ("delta", "delta:fp32")
POLICIES = (FP32, BF16, "static:8", "static:16", "static:24", AWP, *DELTAS)
TRAINS_AS = MappingProxyType({"delta": BF16, "delta:fp32": FP32})
"""Lossless policies, and those whose weights on the device have the same bits: they share a training."""
AWP_FORMATS = MappingProxyType({f"awp:{bits}": bits for bits in STATIC})
"""AWP while all layers have these bits, norms included: between them lie the milliseconds of its batches."""
TIMED = (FP32, BF16, "static:8", "static:16", "static:24", *AWP_FORMATS, *DELTAS)


@dataclass(frozen=True)
class System:
    """A published system: milliseconds of a batch of VGG in float32 (A2DTWP, tables II and III).

    Copies that take no milliseconds have no limit.
    """

    compute_ms: float
    """Forward and backward: convolutions and fully connected layers."""
    to_device_ms: float
    to_host_ms: float


UNLIMITED = "unlimited"
"""A link that limits no copy: what is saved on it bounds what any policy can save on another one."""
SYSTEMS = MappingProxyType(
    {
        "x86": System(162.23, 153.93, 68.51),
        "power": System(82.44, 39.12, 17.34),
        UNLIMITED: System(1.0, 0.0, 0.0),
    }
)
LINKS = ("x86", "power")
"""The systems whose links batches are timed on."""
LONGER, TRAINING, PACE, BATCH = "longer", "training", "pace", "batch"
"""The kinds of cells: the accuracy of a longer training, errors and bits of one, seconds of computation, and
milliseconds of a batch."""
LONGER_SEED, TIMES_LONGER = 0, 2
"""The seed of the longer trainings in float32, and how many times as many batches they have. They say what
the networks can reach on the images; no figure comes from them."""


@dataclass(frozen=True)
class A2dtwpOptions(CheckedOptions):
    """The images, what trains on them and how long, and what is timed in full size.

    Without ``data_dir``, images are those of ``$GRADWIRE_DATA``, or else scikit-learn's digits. Batch sizes
    are the paper's, and AWP's INTERVAL is half an epoch.
    """

    data_dir: Path | None = option(
        None,
        "CIFAR-10 or CIFAR-100",
        shown="$GRADWIRE_DATA, else scikit-learn's digits",
        value=FOLDER,
    )
    networks: tuple[str, ...] = option(NETWORKS, "what to train", known=NETWORKS)
    policies: tuple[str, ...] = option(POLICIES, "how weights travel in trainings", known=POLICIES)
    seeds: tuple[int, ...] = option((1, 2, 3), "a training for each", least=1)
    images: int = option(6400, "training images at most", least=2)
    batches: int = option(1800, "batches of each training", least=10)
    narrower: int = option(8, "times fewer channels than the paper's, in trainings", least=1)
    timed: tuple[str, ...] = option(MODELS, "networks in full size to time")
    timed_batches: int = option(3, "batches that are timed on each link in a turn", least=1)
    timed_size: int = option(2, "images in a batch that is timed", least=2)
    timed_rounds: int = option(3, "turns of all policies that are timed", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("--timed", self.timed or MODELS, MODELS)
        if self.narrower > 64 or 64 % self.narrower:
            raise SpecError(f"expected a divisor of 64 for --narrower, got {self.narrower}")


def cells(options: A2dtwpOptions) -> list[Cell]:
    """Return a cell for each training, and for the batches of each network in full size, round, and policy.

    The longer trainings come first: they say what counts as learned. Policies whose weights on the device
    have the same bits share a training. Policies take turns, and another one begins each time, so that a
    machine that becomes slower favours none.
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
