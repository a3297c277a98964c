"""What the experiment trains, with which policies, and on which links."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gradwire.errors import SpecError
from gradwire.experiments.experiment import Cell, check_known

MODELS = ("alexnet", "vgg", "resnet")
FP32, BF16, AWP = "fp32", "bf16", "awp"
STATIC = MappingProxyType({8: "static:8", 16: "static:16", 24: "static:24", 32: FP32})
"""Policies that cut weights off, by their bits: what the oracle chooses from."""
DELTAS = ("delta", "delta:fp32")
POLICIES = (FP32, BF16, "static:8", "static:16", "static:24", AWP, *DELTAS)


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


@dataclass(frozen=True)
class Options:
    """The images, what trains on them, how long, and how much narrower than the paper's networks are.

    Without an ``interval``, AWP's is an epoch, as published: 4000 batches of 64 images, and 2000 of 128.
    """

    data_dir: Path | None = None
    systems: tuple[str, ...] = tuple(SYSTEMS)
    models: tuple[str, ...] = MODELS
    policies: tuple[str, ...] = POLICIES
    batches: int = 180
    batch_size: int = 32
    narrower: int = 4
    interval: int | None = None

    def __post_init__(self) -> None:
        for called, names, known in (
            ("--system", self.systems, tuple(SYSTEMS)),
            ("--models", self.models, MODELS),
            ("--policies", self.policies, POLICIES),
        ):
            check_known(called, names, known)
        for called, number, least in (
            ("--batches", self.batches, 10),
            ("--batch-size", self.batch_size, 2),
            ("--narrower", self.narrower, 1),
            ("--interval", 1 if self.interval is None else self.interval, 1),
        ):
            if number < least:
                raise SpecError(f"{called} must be {least} or more, but is {number}")
        if self.narrower > 64 or 64 % self.narrower:
            raise SpecError(f"--narrower must divide 64, but is {self.narrower}")
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise SpecError(f"--data-dir must name a folder, but {self.data_dir} is none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's options."""
    usual = Options()

    def add_list(name: str, names: Sequence[str], what: str) -> None:
        text = ",".join(names)
        parser.add_argument(name, metavar="LIST", default=text, help=f"{what} ({text})")

    def add_number(name: str, value: int, what: str) -> None:
        parser.add_argument(name, type=int, metavar="N", default=value, help=f"{what} ({value})")

    parser.add_argument("--data-dir", metavar="DIR", help="CIFAR-10 or CIFAR-100 (scikit-learn's digits)")
    add_list("--system", usual.systems, "whose link is simulated")
    add_list("--models", usual.models, "what to train")
    add_list("--policies", usual.policies, "how weights travel")
    add_number("--batches", usual.batches, "batches of each training")
    add_number("--batch-size", usual.batch_size, "images in a batch")
    add_number("--narrower", usual.narrower, "times fewer channels than the paper's")
    parser.add_argument("--interval", type=int, metavar="N", help="AWP's INTERVAL in batches (an epoch)")


def read(words: argparse.Namespace) -> Options:
    """Return the options. Raises ``SpecError``."""
    systems, models, policies = (
        tuple(dict.fromkeys(text.split(","))) for text in (words.system, words.models, words.policies)
    )
    folder = None if words.data_dir is None else Path(words.data_dir).absolute()
    return Options(
        folder,
        systems,
        models,
        policies,
        words.batches,
        words.batch_size,
        words.narrower,
        words.interval,
    )


def cells(options: Options) -> list[Cell]:
    """Return a cell for each model and policy; all policies of a model train side by side."""
    return [{"model": model, "policy": policy} for model in options.models for policy in options.policies]
