"""What the rows say: when each policy reaches the error of float32, and what the claims come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean, median

from gradwire.experiments.a2dtwp.options import AWP, BF16, DELTAS, FP32, STATIC, UNLIMITED
from gradwire.experiments.claim import RATIO, SHARE, Claim, Explanation, at_least, at_most, shown
from gradwire.experiments.experiment import Row
from gradwire.job.equal_loss import reach

AROUND = 7
"""Cycles before and after one, whose median stands for it: other work on the machine comes in bursts."""
CUTTING = ("static:8", "static:16", "static:24", AWP)
"""The policies that cut weights off."""
SMOOTHED = 3
"""Evaluations whose mean is the error after the last of them."""
EQUAL = 0.01
"""Errors are equal that differ by one point at most."""
SHORTER = 0.75
"""The share of a copy that weights of 8 bits instead of 32 save: AWP saves no more than this share of what a
link without limit saves."""
NOISE = 0.03
"""Two trainings with the same work take times that differ by so much on shared cores."""


def typical(values: Sequence[float]) -> list[float]:
    """Return the running median of some figures.

    Examples
    --------
    >>> typical([1.0, 1.0, 9.0, 1.0, 2.0])[2]
    1.0
    """
    return [median(values[max(place - AROUND, 0) : place + AROUND + 1]) for place in range(len(values))]


def figure_of(row: Row, system: str, name: str) -> float:
    """Return the mean of a figure over a training's cycles on the link of a system."""
    return fmean(typical(row["cycles"][system][name]))


def seconds_of(row: Row, system: str) -> list[float]:
    """Return the seconds after each batch, if all had run on the link of one system.

    A batch that ran on another one takes as long as those around it.
    """
    batches, timed = row["errors"][-1][0], typical(row["cycles"][system]["batch_s"])
    each = [timed[batch * len(timed) // batches] for batch in range(batches)]
    return list(accumulate(each))


def curve_of(row: Row, system: str) -> list[tuple[float, float, float]]:
    """Return batches, seconds, and smoothed error of each evaluation."""
    seconds, errors = seconds_of(row, system), [error for _, error in row["errors"]]
    return [
        (batch, seconds[batch - 1], fmean(errors[max(place - SMOOTHED + 1, 0) : place + 1]))
        for place, (batch, _) in enumerate(row["errors"])
    ]


def last_error(row: Row) -> float:
    """Return the error at the end."""
    return fmean(error for _, error in row["errors"][-SMOOTHED:])


def target_of(*rows: Row) -> float:
    """Return the error to reach: the largest of these trainings' at their end, and one point."""
    return max(map(last_error, rows)) + EQUAL


def seconds_to(row: Row, system: str, target: float) -> float | None:
    """Return when a training reaches an error; None where it doesn't."""
    found = reach(curve_of(row, system), target)
    return None if found is None else found[1]


def oracle_of(rows: Mapping[str, Row], system: str, target: float) -> Row | None:
    """Return the row of the static format that reaches the error first; None without one."""
    from gradwire.training.offload.policies import Oracle

    formats = {bits: rows[name] for bits, name in STATIC.items() if name in rows}
    if not formats:
        return None
    runs = {
        bits: [(seconds, 1 - error) for _, seconds, error in curve_of(row, system)]
        for bits, row in formats.items()
    }
    return formats[Oracle(runs, 1 - target).bits]


def gain(row: Row, baseline: Row, system: str, target: float) -> float | None:
    """Return the share of another policy's time to an error that a policy saves; None where one fails to."""
    own, others = seconds_to(row, system, target), seconds_to(baseline, system, target)
    return None if own is None or others is None else 1 - own / others


def claims(by_model: Mapping[str, Mapping[str, Row]], systems: Sequence[str]) -> list[Claim]:
    """Return the claims about the policies that were trained; ``by_model`` has rows by model and policy."""
    return [each for system in systems if system != UNLIMITED for each in _claims_about(by_model, system)]


def _claims_about(by_model: Mapping[str, Mapping[str, Row]], system: str) -> Iterator[Claim]:
    trained = set.intersection(*(set(rows) for rows in by_model.values()))
    if not {FP32, AWP} <= trained:
        return

    def of(figure: Callable[[Mapping[str, Row]], float | None]) -> dict[str, float | None]:
        return {model: figure(rows) for model, rows in by_model.items()}

    def saved(own: str, other: str) -> dict[str, float | None]:
        """At the other one's error."""
        return of(lambda rows: gain(rows[own], rows[other], system, target_of(rows[other])))

    def saved_at_equal_error(own: str, other: str) -> dict[str, float | None]:
        """At an error that both reach."""
        return of(lambda rows: gain(rows[own], rows[other], system, target_of(rows[own], rows[other])))

    def transfer(rows: Mapping[str, Row], name: str) -> float:
        return figure_of(rows[name], system, "transfer_s") / figure_of(rows[AWP], system, "transfer_s")

    yield Claim(
        "transfer, fp32 over awp", of(lambda rows: transfer(rows, FP32)), at_least(3.2), system, unit=RATIO
    )
    copies = [hidden(rows[FP32], system, target_of(rows[FP32])) for rows in by_model.values()]
    yield Claim(
        "time saved by awp, under fp32",
        saved(AWP, FP32),
        at_least(0.12),
        system,
        otherwise=_little_to_save(copies),
    )
    yield Claim("error of awp over fp32's", of(_excess), at_most(EQUAL), system)
    yield Claim(
        "awp's time over the oracle's", of(lambda rows: behind_oracle(rows, system)), at_most(0.03), system
    )
    of_cpu = of(lambda rows: overhead(rows[AWP], system))
    yield Claim("CPU of norms and Bitpack, of a batch", of_cpu, at_most(0.05), system)
    if BF16 in trained:
        shorter = of(lambda rows: transfer(rows, BF16))
        yield Claim("transfer, bf16 over awp", shorter, at_least(1.0), system, unit=RATIO)
        yield Claim("time saved by awp, under bf16", saved(AWP, BF16), at_least(0.0), system)
    for name in DELTAS:
        if name in trained and BF16 in trained:
            text = f"time saved by {name}, under bf16"
            reason = nothing_to_save([rows[BF16] for rows in by_model.values()], system)
            yield Claim(text, saved(name, BF16), at_least(0.0), system, of_each=True, otherwise=reason)
    for name in CUTTING:
        if DELTAS[0] in trained and name in trained:
            saving = saved_at_equal_error(DELTAS[0], name)
            yield Claim(f"time saved by delta, under {name}", saving, at_least(0.0), system, of_each=True)


def hidden(row: Row, system: str, target: float) -> float | None:
    """Return the share of a policy's time to an error that a link without limit would save.

    What computation doesn't hide of the copies: no policy on this link saves more of it. None without cycles
    on such a link.
    """
    if UNLIMITED not in row["cycles"]:
        return None
    limited, free = seconds_to(row, system, target), seconds_to(row, UNLIMITED, target)
    return None if limited is None or free is None else 1 - free / limited


def _little_to_save(copies: Sequence[float | None]) -> Explanation | None:
    """Return why AWP saves less than published; None if links without limit weren't measured."""
    known = _known(copies)
    if not known:
        return None
    most = max(0.0, fmean(known))
    return Explanation(
        f"copies hide behind computation here, as they don't in the paper: a link without limit would save "
        f"{shown(most, SHARE)} of float32's time. AWP, whose copies are a quarter as long, saves three "
        f"quarters of that or more",
        at_least(SHORTER * most),
    )


def nothing_to_save(rows: Sequence[Row], system: str) -> Explanation | None:
    """Return why a policy isn't faster than another one, of which these are the rows.

    None if a link without limit would make that one clearly faster, or wasn't measured.
    """
    known = _known([hidden(row, system, last_error(row)) for row in rows])
    if not known or max(known) > NOISE:
        return None
    return Explanation(
        f"a link without limit would save at most {shown(max(0.0, *known), SHARE)} of the other policy's "
        f"time, since its copies hide behind computation; times of the same work differ by up to "
        f"{shown(NOISE, SHARE)} here",
        at_least(-NOISE),
    )


def _known(shares: Sequence[float | None]) -> list[float]:
    """Return the shares; nothing if one of them is missing."""
    known = [each for each in shares if each is not None]
    return known if len(known) == len(shares) else []


def overhead(row: Row, system: str) -> float:
    """Return the share of a batch that a CPU computes norms and packs, on a thread of their own."""
    return figure_of(row, system, "packing_cpu_s") / figure_of(row, system, "batch_s")


def _excess(rows: Mapping[str, Row]) -> float:
    return last_error(rows[AWP]) - last_error(rows[FP32])


def behind_oracle(rows: Mapping[str, Row], system: str) -> float | None:
    """Return by what share AWP takes longer to the error than the best static format does."""
    target = target_of(rows[FP32])
    best = oracle_of(rows, system, target)
    saved = None if best is None else gain(rows[AWP], best, system, target_of(best))
    return None if saved is None else -saved
