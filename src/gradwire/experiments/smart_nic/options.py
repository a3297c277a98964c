"""What the experiment models, simulates, and measures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.benchmark.lists import between_commas
from gradwire.errors import SpecError
from gradwire.experiments.experiment import Cell, Row, check_known
from gradwire.experiments.hosts.network import check_networks
from gradwire.timing.closed_form.smart_nic_figures import constants, figures
from gradwire.timing.closed_form.smart_nic_prototype import BATCHES, calibrate

PAPER, RING, STEP = "paper", "ring", "step"
PARTS = (PAPER, RING, STEP)
CONSTANT, FIGURE, SCALING = "constant", "figure", "scaling"
"""The kinds of cells of the part ``paper``."""
NODES = (3, 4, 5, 6, 8, 12, 16, 24, 32)
IDENTITY, BFP = "identity", "bfp:7x16"
RINGS = ((IDENTITY, 3, 1), (IDENTITY, 6, 1), (IDENTITY, 3, 3), (BFP, 3, 1), (BFP, 4, 1), (BFP, 3, 3))
"""Codec, nodes, and how many all-reduces follow each other."""
CHUNK_WORDS = 160
"""Words of 256 bits in each chunk."""
BLOCKING, OVERLAPPED, LAYERWISE = "blocking", "overlapped", "layer-wise"
METHODS = (BLOCKING, OVERLAPPED, LAYERWISE)


@dataclass(frozen=True)
class Options:
    """The parts to perform, and the testbed's network and perceptron."""

    parts: tuple[str, ...] = PARTS
    hosts: int = 4
    rate: str = "50mbit"
    layers: int = 10
    width: int = 512
    batch: int = BATCHES[0]

    def __post_init__(self) -> None:
        check_known("--parts", self.parts, PARTS)
        check_networks([(self.hosts, self.rate)])
        for called, number, least in (
            ("--layers", self.layers, 2),
            ("--width", self.width, 64),
            ("--batch", self.batch, 1),
        ):
            if number < least:
                raise SpecError(f"{called} must be {least} or more, but is {number}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's options."""
    usual = Options()
    parts = ",".join(PARTS)
    parser.add_argument("--parts", metavar="LIST", default=parts, help=f"what to perform ({parts})")
    parser.add_argument("--hosts", type=int, metavar="N", default=usual.hosts, help="of the testbed (4)")
    parser.add_argument(
        "--rate", metavar="RATE", default=usual.rate, help=f"of every host, each way ({usual.rate})"
    )
    for name, value, what in (
        ("--layers", usual.layers, "layers of the perceptron on the testbed"),
        ("--width", usual.width, "inputs and outputs of each"),
        ("--batch", usual.batch, "samples of each node"),
    ):
        parser.add_argument(name, type=int, metavar="N", default=value, help=f"{what} ({value})")


def read(words: argparse.Namespace) -> Options:
    """Return the options. Raises ``GradwireError``."""
    parts = tuple(dict.fromkeys(between_commas(words.parts)))
    return Options(parts, words.hosts, words.rate, words.layers, words.width, words.batch)


def cells(options: Options) -> list[Cell]:
    """Return a cell for each constant, figure, and point of the model, each ring, and each way to step."""
    prototype = calibrate()
    paper: list[Cell] = [
        *({"part": CONSTANT, "what": each.what} for each in constants(prototype)),
        *({"part": FIGURE, "what": each.what} for each in figures(prototype)),
        *({"part": SCALING, "batch": batch, "nodes": nodes} for batch in BATCHES for nodes in NODES),
    ]
    rings: list[Cell] = [
        {"part": RING, "codec": codec, "nodes": nodes, "rounds": rounds, "chunk_words": CHUNK_WORDS}
        for codec, nodes, rounds in RINGS
    ]
    network = {"hosts": options.hosts, "rate": options.rate}
    mlp = {"layers": options.layers, "width": options.width, "batch": options.batch}
    steps: list[Cell] = [
        {"part": STEP, **network, **mlp, "method": method, "codec": codec}
        for codec in (IDENTITY, BFP)
        for method in METHODS
    ]
    every = {PAPER: paper, RING: rings, STEP: steps}
    return [cell for part in PARTS if part in options.parts for cell in every[part]]


def part_of(rows: Sequence[Row], part: str) -> list[Row]:
    """Return the cells or rows of a part."""
    return [row for row in rows if row["part"] == part]
