"""Training runs and timed batches combined: batches to an error, milliseconds per batch, and seconds.

Each batch of a narrow network's training run takes as long as a full-size batch with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median

from gradwire_lab.experiments.a2dtwp.options import (
    AWP,
    AWP_FORMATS,
    BATCH,
    FP32,
    LONGER,
    NORMALISED,
    STATIC,
    TRAINING,
    TRAINS_AS,
    UNLIMITED,
)
from gradwire_lab.experiments.claim import SHARE, Explanation, at_least, shown
from gradwire_lab.experiments.experiment import Row
from gradwire_lab.job.record import reach

# Training runs side by side on paced links: batch times without bursts, and the time to an error.

AROUND = 7
"""The number of cycles on either side in the running median, which removes bursts of other programs."""
SMOOTHED = 3
"""The number of evaluations whose mean is the smoothed error after the last evaluation."""
NOISE = 0.03
"""The relative difference between times for the same work on shared cores."""


def typical(values: Sequence[float]) -> list[float]:
    """Return the running median of a sequence of figures.

    Examples
    --------
    >>> typical([1.0, 1.0, 9.0, 1.0, 2.0])[2]
    1.0
    """
    return [median(values[max(place - AROUND, 0) : place + AROUND + 1]) for place in range(len(values))]


def figure_of(row: Row, system: str, name: str) -> float:
    """Return the mean of a figure over a training run's cycles on a system's link."""
    return fmean(typical(row["cycles"][system][name]))


def seconds_of(row: Row, system: str) -> list[float]:
    """Return the seconds after each batch, as if all batches had run on one system's link."""
    batches, timed = row["errors"][-1][0], typical(row["cycles"][system]["batch_s"])
    each = [timed[batch * len(timed) // batches] for batch in range(batches)]
    return list(accumulate(each))


def curve_of(row: Row, system: str) -> list[tuple[float, float, float]]:
    """Return, for each evaluation, the batches and seconds so far, and the smoothed error."""
    seconds, errors = seconds_of(row, system), [error for _, error in row["errors"]]
    return [
        (batch, seconds[batch - 1], fmean(errors[max(place - SMOOTHED + 1, 0) : place + 1]))
        for place, (batch, _) in enumerate(row["errors"])
    ]


def last_error(row: Row) -> float:
    """Return the smoothed final error of a training run."""
    return fmean(error for _, error in row["errors"][-SMOOTHED:])


def seconds_to(row: Row, system: str, target: float) -> float | None:
    """Return the seconds until a training run reaches an error, or None if the run never does."""
    found = reach(curve_of(row, system), target)
    return None if found is None else found[1]


def gain(row: Row, baseline: Row, system: str, target: float) -> float | None:
    """Return the share of the baseline's time to an error that a policy saves, or None without both times."""
    own, others = seconds_to(row, system, target), seconds_to(baseline, system, target)
    return None if own is None or others is None else 1 - own / others


def hidden(row: Row, system: str, target: float) -> float | None:
    """Return the share of a policy's time to an error that an unlimited link would save, if measured."""
    if UNLIMITED not in row["cycles"]:
        return None
    limited, free = seconds_to(row, system, target), seconds_to(row, UNLIMITED, target)
    return None if limited is None or free is None else 1 - free / limited


def nothing_to_save(rows: Sequence[Row], system: str) -> Explanation | None:
    """Return why no policy can clearly beat the policy of ``rows``, or None if one can or it is unknown."""
    shares = [hidden(row, system, last_error(row)) for row in rows]
    known = [each for each in shares if each is not None]
    if not known or len(known) < len(shares) or max(known) > NOISE:
        return None
    return Explanation(
        f"an unlimited link would save at most {shown(max(0.0, *known), SHARE)} of the other policy's "
        "time, because computation hides its copies; times of the same work differ by up to "
        f"{shown(NOISE, SHARE)} on this machine",
        at_least(-NOISE),
    )


EQUAL = 0.01
"""The margin of the target error over float32's final error: one point. Closer errors count as equal."""


class MeasuredPolicies:
    """The rows of a record, by network and policy. ``longer`` is the accuracy of each longer training run."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._trainings: dict[tuple[str, str], list[Row]] = {}
        self._batches: dict[tuple[str, str], Row] = {}
        self.longer = {str(row["model"]): float(row["accuracy"]) for row in rows if row["kind"] == LONGER}
        for row in rows:
            if row["kind"] == TRAINING:
                self._trainings.setdefault((row["model"], row["policy"]), []).append(row)
            elif row["kind"] == BATCH:
                known = self._batches.get((row["model"], row["policy"]))
                self._batches[row["model"], row["policy"]] = row if known is None else _joined(known, row)
        self.networks = [*dict.fromkeys(model for model, _ in self._trainings)]
        self.images = next(str(row["images"]) for row in rows if row["kind"] == TRAINING)

    def trainings(self, model: str, policy: str) -> list[Row]:
        """Return a network's training runs with a policy, or with a policy that sends the same bits."""
        return self._trainings.get((model, TRAINS_AS.get(policy, policy)), [])

    def accuracies(self, model: str, policy: str) -> list[float]:
        """Return the final accuracies of a network's training runs with a policy."""
        return [float(row["accuracy"]) for row in self.trainings(model, policy)]

    def curve(self, model: str, policy: str) -> list[tuple[int, float]]:
        """Return batches and errors: means over the seeds and the last evaluations."""
        every = [[tuple(each) for each in row["errors"]] for row in self.trainings(model, policy)]
        batches = [batch for batch, _ in every[0]] if every else []
        errors = [fmean(error for _, error in column) for column in zip(*every, strict=True)]
        return [
            (batch, fmean(errors[max(place - SMOOTHED + 1, 0) : place + 1]))
            for place, batch in enumerate(batches)
        ]

    def last_error(self, model: str, policy: str) -> float:
        """Return the smoothed final error of a policy, averaged over the seeds."""
        return self.curve(model, policy)[-1][1]

    def target(self, model: str) -> float:
        """Return the target error: float32's final error plus ``EQUAL``."""
        return self.last_error(model, FP32) + EQUAL

    def batches_to(self, model: str, policy: str) -> float | None:
        """Return the number of batches until a policy reaches the target error, or None if it never does."""
        points = [(batch, float(batch), error) for batch, error in self.curve(model, policy)]
        found = reach(points, self.target(model)) if points else None
        return None if found is None else found[1]

    def row(self, model: str, policy: str) -> Row | None:
        """Return the timed batches of a full-size network from all repetitions, or None if not timed."""
        return self._batches.get((NORMALISED.get(model, model), policy))

    def figure(self, model: str, policy: str, system: str, name: str) -> float | None:
        """Return the median of a figure over a policy's timed batches on a link.

        For AWP, it is the mean over the batches with a known threshold, interpolated at each batch's mean
        bits.
        """
        if policy != AWP:
            row = self.row(model, policy)
            return None if row is None else median(row["cycles"][system][name])
        every = [self._mean(model, each, system, name, each["epoch"]) for each in self.trainings(model, AWP)]
        known = [each for each in every if each is not None]
        return fmean(known) if known else None

    def seconds(self, model: str, policy: str, system: str, batches: float | None = None) -> float | None:
        """Return the seconds of a training run's first ``batches``, or of all batches."""
        trainings = self.trainings(model, policy)
        if not trainings:
            return None
        until = float(trainings[0]["errors"][-1][0]) if batches is None else batches
        if policy != AWP:
            each = self.figure(model, policy, system, "batch_s")
            return None if each is None else each * until
        means = [self._mean(model, row, system, "batch_s", 0, until) for row in trainings]
        known = [each * until for each in means if each is not None]
        return fmean(known) if known else None

    def seconds_to(self, model: str, policy: str, system: str) -> float | None:
        """Return the seconds until a policy reaches the target error, or None if it never does."""
        batches = self.batches_to(model, policy)
        return None if batches is None else self.seconds(model, policy, system, batches)

    def gain(self, model: str, policy: str, other: str, system: str) -> float | None:
        """Return the share of another policy's time to the target error that a policy saves."""
        own, others = (self.seconds_to(model, each, system) for each in (policy, other))
        return None if own is None or others is None else 1 - own / others

    def oracle(self, model: str, system: str) -> str | None:
        """Return the static format that reaches the target error first, or None if no static format does."""
        times = {name: self.seconds_to(model, name, system) for name in STATIC.values()}
        known = {name: seconds for name, seconds in times.items() if seconds is not None}
        return min(known, key=lambda name: known[name]) if known else None

    def bits(self, model: str, training: Row) -> float:
        """Return the mean bits per weight of the full network over a training run's batches."""
        spans, sizes = [*_spans(training, 0, None)], self._sizes(model, training)
        return sum(count * _weighted(bits, sizes) for count, bits in spans) / sum(count for count, _ in spans)

    def switches(self, model: str) -> list[int]:
        """Return, for each AWP training run, the number of batches after which AWP raised a layer's bits."""
        return [
            sum(
                any(new > old for old, new in zip(before, now, strict=True))
                for (_, before), (_, now) in pairwise(row["bits"])
            )
            for row in self.trainings(model, AWP)
        ]

    def _mean(
        self, model: str, training: Row, system: str, name: str, begin: float, end: float | None = None
    ) -> float | None:
        """Return a figure's mean over a training run's batches at their bits, or None if unknown."""
        rows = {bits: self.row(model, each) for each, bits in AWP_FORMATS.items()}
        found = {bits: median(row["cycles"][system][name]) for bits, row in rows.items() if row is not None}
        spans = [*_spans(training, begin, end)]
        if len(found) < len(AWP_FORMATS) or not spans:
            return None
        sizes, total = self._sizes(model, training), sum(count for count, _ in spans)
        return sum(count * between(found, _weighted(bits, sizes)) for count, bits in spans) / total

    def _sizes(self, model: str, training: Row) -> Sequence[int]:
        """Return the values per layer of the full network, or of the narrow one if no batch was timed."""
        full = self.row(model, next(iter(AWP_FORMATS)))
        found: Sequence[int] = (training if full is None else full)["sizes"]
        return found


def _joined(one: Row, other: Row) -> Row:
    """Return a row with the timed batches of two repetitions."""
    cycles = {
        system: {name: [*values, *other["cycles"][system][name]] for name, values in each.items()}
        for system, each in one["cycles"].items()
    }
    return {**one, "cycles": cycles}


def between(found: dict[int, float], bits: float) -> float:
    """Return a figure at a mean number of bits, interpolated linearly between the formats.

    Examples
    --------
    >>> between({8: 1.0, 16: 2.0, 24: 4.0, 32: 4.0}, 20)
    3.0
    """
    for low, high in pairwise(sorted(found)):
        if bits <= high:
            return found[low] + (found[high] - found[low]) * (bits - low) / (high - low)
    return found[max(found)]


def _spans(training: Row, begin: float, end: float | None) -> Iterator[tuple[float, Sequence[int]]]:
    """Yield the length and each layer's bits of each span of equal bits between ``begin`` and ``end``."""
    changes = [(int(batch), bits) for batch, bits in training["bits"]]
    last = float(training["errors"][-1][0]) if end is None else end
    ends = [*(batch - 1 for batch, _ in changes[1:]), last]
    before = 0.0
    for (_, bits), until in zip(changes, ends, strict=True):
        low, high = max(before, begin), min(float(until), last)
        before = float(until)
        if high > low:
            yield high - low, bits


def _weighted(bits: Sequence[int], sizes: Sequence[int]) -> float:
    return sum(each * size for each, size in zip(bits, sizes, strict=True)) / sum(sizes)
