"""What the planner says agrees with the rows that it stands beside, whatever these are."""

from __future__ import annotations

import json
import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.codecs import Identity
from gradwire.planner.candidates import Workload
from gradwire.planner.choice import LEAST_GAIN, Choice, ScalePoint, hosts_that_pay
from gradwire.planner.explain import name_plan
from gradwire.planner.predict import UNCERTAINTY, Prediction, is_exact
from gradwire.planner.report import ranking, report, scaling
from gradwire.tables import Table, lines
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line
from gradwire.units import format_duration
from support.planner_costs import chosen, make_request

SPECS = {"identity": 4.0, "bf16": 2.0, "quantize:8": 1.004}
speed = st.floats(1e-11, 3e-9)
disagreements = st.sampled_from([0.0, 0.0, 0.1, 1 / 3])


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    def cost(spec: str, nbytes: float) -> CodecCost:
        point = CodecPoint(1, nbytes, draw(speed), draw(speed), draw(speed))
        return CodecCost(spec, (point,), 1e-5, spec == "identity", draw(disagreements))

    frame_s = draw(st.floats(1e-6, 3e-4))
    environment = Environment(
        Line(draw(st.floats(1e-5, 1e-3)), draw(st.floats(1e6, 5e9))),
        {spec: cost(spec, nbytes) for spec, nbytes in SPECS.items()},
        HostCost(frame_s, frame_s, cores=draw(st.sampled_from([1, 4])), disagreement=draw(disagreements)),
    )
    workload = Workload.of_count(
        draw(st.sampled_from([3000, 200_000, 600_000])), 0.0, draw(st.floats(0.0, 0.05)), 1e-3
    )
    pipelines = draw(st.sampled_from([(1,), (1, 2)]))
    algorithms = ("backend", "ring", "butterfly", "star")
    hosts = draw(st.sampled_from([2, 3, 4]))
    asked = make_request(workload, list(SPECS), hosts, algorithms=algorithms, pipelines=pipelines)
    return chosen(asked, environment)


def fastest(choice: Choice, exact: bool) -> Prediction | None:
    kind = [each for each in choice.ranking if isinstance(each.plan.codec, Identity) == exact]
    return min(kind, key=lambda each: each.step_s, default=None)


def said(pattern: str, text: str) -> tuple[str, ...] | None:
    match = re.search(pattern, text)
    return None if match is None else match.groups()


@settings(max_examples=60, deadline=None)
@given(choices())
def test_the_explanation_agrees_with_the_ranking(choice: Choice) -> None:
    text, chosen, uncertainty = choice.explanation, choice.prediction, choice.ranked.uncertainty
    plain, lossy = fastest(choice, exact=True), fastest(choice, exact=False)
    assert plain is not None
    assert choice.uncompressed.step_s == plain.step_s
    gain = said(r"the fastest plan without compression \((.+?)\) takes (\S+), (\S+) times as long", text)
    bar = said(r"and at best (\S+) with compression \((.+?)\), (\S+) % (less|more)", text)
    if not isinstance(chosen.plan.codec, Identity):
        ratio = f"{plain.step_s / chosen.step_s:.2f}"
        assert gain == (name_plan(plain.plan), format_duration(plain.step_s), ratio)
        assert chosen.step_s < (1 - uncertainty) * plain.step_s
    elif bar is not None:
        assert lossy is not None
        assert bar[:2] == (format_duration(lossy.step_s), name_plan(lossy.plan))
        less = 1 - lossy.step_s / plain.step_s
        assert (bar[3] == "less") == (less > 0)
        assert float(bar[2]) <= 100 * max(uncertainty, -less) + 0.1
    else:
        assert "every plan with compression takes longer" in text
        assert lossy is None or lossy.step_s > plain.step_s
    same = fastest(choice, isinstance(chosen.plan.codec, Identity))
    assert same is not None
    tie = said(r"The fastest \w+ plan \((.+?)\) takes (\S+); plans within", text)
    assert tie == (
        None if same.step_s == chosen.step_s else (name_plan(same.plan), format_duration(same.step_s))
    )
    assert ("Computation hides the exchange" in text) == (chosen.exposed_s <= 1e-6 * chosen.step_s)
    if part := said(r"most of the exchange is .+ \((\S+)\)", text):
        largest = max(chosen.cost.encode_s, chosen.cost.decode_s, chosen.cost.handling_s, chosen.cost.wait_s)
        assert part == (format_duration(largest),)
        assert largest > chosen.exchange_s / 2


@settings(max_examples=40, deadline=None)
@given(choices())
def test_uncertainty_is_what_repeats_disagree_by(choice: Choice) -> None:
    environment, told = choice.environment, json.loads(choice.to_json())["uncertainty"]
    disagree = {environment.cost(spec).disagreement for spec in SPECS} | {environment.host.disagreement}
    assert UNCERTAINTY <= told <= max(UNCERTAINTY, *disagree)
    assert (told > UNCERTAINTY) == ("Repeated calibrations disagree" in choice.explanation)


def test_repeats_that_disagree_by_two_make_a_step_of_codecs_uncertain_by_a_third() -> None:
    point = CodecPoint(1, 4.0, 1e-8, 1e-8, 1e-8)
    costs = {spec: CodecCost(spec, (point,), 0.0, disagreement=1 / 3) for spec in SPECS}
    asked = make_request(Workload.of_count(200_000), list(SPECS))
    told = chosen(asked, Environment(Line(0.0, 1e12), costs)).ranked.uncertainty
    assert 0.25 < told <= 1 / 3


@settings(max_examples=30, deadline=None)
@given(choices())
def test_the_table_marks_the_chosen_plan_and_its_terms_add_up(choice: Choice) -> None:
    table, _ = ranking(choice, 1000)
    assert isinstance(table, Table)
    (marked,) = (row for row in table.rows if row[0] == ">")
    assert marked is table.rows[0]
    assert choice.prediction.to_loss_s * (1 - UNCERTAINTY) <= min(
        each.to_loss_s for each in choice.ranking if is_exact(each.plan) == is_exact(choice.plan)
    )
    cells = dict(zip((column.name for column in table.columns), marked, strict=True))
    compute_s = choice.request.workload.compute_with_s(choice.plan.pipeline)
    step_s = choice.prediction.step_s
    assert float(cells["step"]) * 1e-3 == step_s or abs(float(cells["step"]) * 1e-3 / step_s - 1) < 0.02
    assert abs(compute_s + choice.prediction.exposed_s - step_s) < 1e-12
    if choice.plan.pipeline > 1:
        note = " ".join(lines(*report(choice, 1000)))
        assert f"{format_duration(compute_s)} with the local updates of K={choice.plan.pipeline}" in note


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=7))
def test_which_hosts_pay_is_what_the_rows_say(efficiencies: list[float]) -> None:
    hosts = [1 << k for k in range(len(efficiencies) + 1)]
    points = [ScalePoint(1, 1.0, 1.0, None)]
    points += [ScalePoint(n, 1 / share, 1.0, None) for n, share in zip(hosts[1:], efficiencies, strict=True)]
    pays = {
        (before.hosts, after.hosts): after.speedup - before.speedup
        >= LEAST_GAIN * (after.hosts - before.hosts)
        for before, after in pairwise(points)
    }
    text = " ".join(lines(*scaling(points)))
    told = [(int(low), int(high)) for low, high in re.findall(r"from (\d+) to (\d+)", text)]
    if "of a host or more." in text:
        told = [(1, hosts[-1])]
    assert ("additional hosts add less than" in text) == (not told)
    peak = said(r"The throughput (still grows|is highest) at (\d+) hosts, with (\S+)x that of one", text)
    assert peak is not None
    best = max(points, key=lambda each: each.speedup)
    assert peak[1:] == (str(best.hosts), f"{best.speedup:.2f}")
    assert (peak[0] == "still grows") == (best is points[-1])
    table = scaling(points)[0]
    assert isinstance(table, Table)
    cells = [dict(zip((each.name for each in table.columns), row, strict=True)) for row in table.rows]
    assert max(float(row["throughput"][:-1]) for row in cells) == float(peak[2])
    for row, (low, high) in zip(cells[1:], pays, strict=True):
        if abs(float(row["adds"]) - LEAST_GAIN) > 0.01:
            inside = any(first <= low and high <= last for first, last in told)
            assert (float(row["adds"]) > LEAST_GAIN) == inside
    for (low, high), paid in pays.items():
        assert any(first <= low and high <= last for first, last in told) == paid, text
    unbroken = 1
    while pays.get((unbroken, 2 * unbroken)):
        unbroken *= 2
    assert hosts_that_pay(points) == unbroken
