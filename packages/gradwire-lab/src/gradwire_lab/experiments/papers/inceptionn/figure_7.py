"""Figure 7: the training time with compression in software, modelled from the codecs' measured rates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import log2
from statistics import fmean, median
from typing import Any

from gradwire.deferred import torch
from gradwire.version import installed
from gradwire_lab.experiments.claim import (
    RATIO,
    Basis,
    Bound,
    Claim,
    Explanation,
    Published,
    at_most,
    near,
    only,
    within,
)
from gradwire_lab.experiments.experiment import Cell, Row, cells_of, select
from gradwire_lab.experiments.hosts.training import dataset, one_thread
from gradwire_lab.experiments.learning import GOALS, Trainings, exact_trainings, first_steps
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, each, exhibit, paper
from gradwire_lab.experiments.papers.inceptionn import full_size
from gradwire_lab.experiments.papers.inceptionn.full_size import FULL_SIZE, UNTRIED
from gradwire_lab.experiments.papers.inceptionn.table_2 import ITERATIONS, NBYTES, STEPS, WORKERS
from gradwire_lab.experiments.papers.inceptionn.training import train
from gradwire_lab.job.data import at_hand

PLACE = "figure 7"
SNAPPY = "snappy"
"""The package cramjam's Snappy, a general lossless compressor."""
SZ = "sz:2^-10"
"""The package pysz's SZ3, the current version of SZ, with an absolute bound."""
PACKAGES = {SNAPPY: "cramjam", SZ: "pysz"}
TRUNCATE, NIC = "truncate:16", "inceptionn:2^-10"
CODECS = (SNAPPY, SZ, "lossless", TRUNCATE, NIC)
NETWORK, LEARNED = "AlexNet", "HDC, 3 layers, He"
"""The network whose step is modelled, and a network that is trained to its end."""
BATCH = 32
"""The number of images in a batch of AlexNet."""
SLOWER, SNAPPY_RATIO = (2.0, 4.0), 1.5
TRUNCATED = (0.6, 1.0)
"""The bound for the time with truncation, which is slightly shorter in the paper's words."""
TWICE, RATIOS = 0.1, 0.2
"""The allowed deviations of times and of Snappy's ratio from the published figures."""
GRADIENTS = WORKERS / (WORKERS + log2(WORKERS))
"""The share of gradients in an aggregator's communication, by its formula. The rest is weights."""
VECTORS = "kernels here encode and decode gigabytes per second on one core, with vector instructions."


@dataclass(frozen=True)
class InceptionnFigure7Options:
    """The options: codecs, HDC's seeds and steps, repetitions, and steps of full-size AlexNet (0: none)."""

    codecs: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    repeats: int
    first_steps: int = 0


def cells(options: InceptionnFigure7Options) -> list[Cell]:
    """Return a cell for each training run and codec."""
    learned: Cell = {"network": LEARNED, "data": at_hand()}
    large: Cell = {"network": NETWORK, "data": "imagenet", "seed": 1}
    found = cells_of(learned, seed=options.seeds, codec=options.codecs)
    return found + (cells_of(large, codec=options.codecs) if options.first_steps else [])


def measure(options: InceptionnFigure7Options, cell: Cell) -> Mapping[str, Any]:
    """Time a codec on a gradient from the middle of a training run, on one thread."""
    package, network = PACKAGES.get(cell["codec"]), cell["network"]
    if package is not None and find_spec(package) is None:
        return {"missing": f"the package {package} is not installed (extra papers)."}
    if network in FULL_SIZE and (reason := full_size.missing()):
        return {"missing": reason}
    steps = options.first_steps if network in FULL_SIZE else options.steps
    gradient, learned = _gradient(cell["data"], network, steps, cell["seed"])
    with one_thread(1):
        timed = _timed(cell["codec"], gradient, options.repeats)
    tool = package or "gradwire"
    return {**timed, "tool": f"{tool} {installed(tool)}", **learned}


@lru_cache(1)
def _gradient(data: str, network: str, steps: int, seed: int) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """Return the gradient of the middle step, and the run's accuracy or losses, cached for all codecs."""
    kept: list[torch.Tensor] = []

    def watch(step: int, gradient: torch.Tensor) -> None:
        if step == steps // 2:
            kept.append(gradient.clone())

    if network in FULL_SIZE:
        losses = full_size.train(network, steps, BATCH, seed, watch)
        return kept[0], {"losses": losses}
    accuracies = train(dataset(data), network, steps, seed, watch=watch)
    return kept[0], {"accuracy": accuracies[steps]}


def _timed(codec: str, gradient: torch.Tensor, repeats: int) -> Mapping[str, Any]:
    encode, decode = _functions(codec, gradient)
    encoding, decoding, payload = list[float](), list[float](), encode()
    decode(payload)
    for _ in range(repeats):
        began = time.perf_counter()
        payload = encode()
        encoded = time.perf_counter()
        decode(payload)
        encoding.append(encoded - began)
        decoding.append(time.perf_counter() - encoded)
    nbytes = {"nbytes": 4 * gradient.numel(), "payload_nbytes": len(payload)}
    return {**nbytes, "encode_s": encoding, "decode_s": decoding}


def _functions(codec: str, gradient: torch.Tensor) -> tuple[Callable[[], Any], Callable[[Any], object]]:

    from gradwire.codecs import parse

    if codec == SNAPPY:
        from cramjam import snappy

        floats = gradient.numpy().tobytes()
        return lambda: snappy.compress_raw(floats), snappy.decompress_raw
    if codec == SZ:
        return _sz(gradient)
    made, out = parse(codec), torch.empty_like(gradient)
    return lambda: made.encode(gradient), lambda payload: made.decode(payload, out)


def _sz(gradient: torch.Tensor) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    from pysz import sz, szConfig, szErrorBoundMode

    config, x = szConfig(), gradient.numpy()
    config.errorBoundMode, config.absErrorBound = szErrorBoundMode.ABS, 2.0**-10
    return lambda: sz.compress(x, config)[0], lambda payload: sz.decompress(payload, x.dtype, x.shape)


class Timed:
    """A codec's payloads and times on the gradients of several training runs."""

    def __init__(self, rows: Sequence[Row], codec: str, network: str = LEARNED) -> None:
        self._rows = select(rows, codec=codec, network=network)
        untimed = "" if self._rows else UNTRIED
        self.missing = next((row["missing"] for row in self._rows if "missing" in row), untimed)
        self.other_tool = next(filter(None, map(_other_tool, self._rows)), "")

    @property
    def learned(self) -> list[Trainings]:
        """The training runs behind the figures, or nothing if nothing was timed."""
        if self.missing:
            return []
        network, data = self._rows[0]["network"], self._rows[0]["data"]
        if network in FULL_SIZE:
            return [first_steps(network, FULL_SIZE[network].steps, row["losses"]) for row in self._rows]
        return [exact_trainings(network, [row["accuracy"] for row in self._rows], GOALS[data])]

    @property
    def ratio(self) -> float | None:
        """The mean compression ratio."""
        if self.missing:
            return None
        return fmean(row["nbytes"] / row["payload_nbytes"] for row in self._rows)

    @property
    def times_longer(self) -> float | None:
        """The ratio of AlexNet's training time with the codec to the time without it.

        Workers encode, the aggregator decodes all gradients, and their share of the communication shrinks.
        """
        if self.ratio is None:
            return None
        step, nbytes = STEPS[NETWORK], NBYTES[NETWORK]
        of_byte_s = fmean(
            (median(row["encode_s"]) + WORKERS * median(row["decode_s"])) / row["nbytes"]
            for row in self._rows
        )
        saved_s = step.communicate_s * GRADIENTS * (1 - 1 / self.ratio)
        return float((step.total_s - saved_s + ITERATIONS * nbytes * of_byte_s) / step.total_s)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about training times, and a lossless compressor's ratio, for each gradient."""
    return [*_claims(rows, LEARNED, "HDC's gradient"), *_claims(rows, NETWORK, "AlexNet's gradient")]


def _claims(rows: Sequence[Row], network: str, gradient: str) -> Iterator[Claim]:
    """Return claims about AlexNet's step, from a model with the codec's measured times and ratio."""
    slower, place = within(SLOWER, TWICE), Published(PLACE, SLOWER)
    drawn, ratio = Published(PLACE), Published("section I", SNAPPY_RATIO)
    fast = Explanation(VECTORS, at_most(1.0))
    for codec, is_time, text, wanted, published, otherwise in (
        (SNAPPY, True, "with Snappy", slower, place, None),
        (SZ, True, "with SZ", slower, place, None),
        (SNAPPY, False, "ratio of Snappy", near(SNAPPY_RATIO, RATIOS), ratio, None),
        (TRUNCATE, True, "with truncation in software: slightly shorter", Bound(*TRUNCATED), drawn, None),
        (NIC, True, "with the NIC's format in software", slower, place, fast),
    ):
        timed = Timed(rows, codec, network)
        yield Claim(
            f"AlexNet's time {text}, over that without" if is_time else text,
            only(timed.times_longer if is_time else timed.ratio),
            wanted,
            f"({gradient})",
            unit=RATIO,
            published=published,
            otherwise=otherwise,
            basis=Basis.MODELLED if is_time else Basis.MEASURED,
            rests_on=timed.learned,
            not_run=timed.missing,
            other_tool=timed.other_tool,
        )


def _other_tool(row: Row) -> str:
    """Return a complaint if a row's package isn't the codec's package, else an empty string."""
    wanted, found = PACKAGES.get(row["codec"], "gradwire"), row.get("tool", "none")
    if "missing" in row or found.split(" ")[0] == wanted:
        return ""
    return f"expected {row['codec']} of the package {wanted}, got {found}."


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how much longer does training take with compression in software?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=InceptionnFigure7Options(CODECS, (1,), 168, 7),
    full=InceptionnFigure7Options(CODECS, (1, 2, 3), 600, 15, 20),
    scaling="codecs are timed on one core, on two gradients. The first gradient is HDC's, from the middle "
    "of a training run, on MNIST if GRADWIRE_DATA has it, else on scikit-learn's digits; its rate per byte "
    "and its ratio are applied to AlexNet's 233 MB. Snappy compresses this gradient better than a gradient "
    "of photographs, because HDC's gradient has zeros for all pixels that are dark in a batch. The second "
    "gradient is full-size AlexNet's, at the tenth step, on photographs, so a rule that it meets is 'too "
    "short'. The rest of the step is from table II, so times are modelled. SZ is SZ3 with a bound of "
    "2^-10. Snappy and SZ come from the extra papers.",
    origins={
        "SLOWER codecs": paper("figure 7"),
        "SNAPPY_RATIO": paper("section I"),
        "TRUNCATED": chosen(
            "the bytes of half of all gradients can save a quarter; processor time adds to it"
        ),
        "TWICE": chosen("the published range has one digit"),
        "RATIOS": chosen("the published ratio has two digits, and gradients differ"),
        "GRADIENTS": chosen("by the formula of an aggregator"),
        "seeds": chosen("the minimum for an interval"),
        "steps repeats first_steps": RUN_TIME,
        "BATCH": chosen("half of table I's batch, to save memory"),
    },
    seconds=(8, 150),
    version=5,
)
