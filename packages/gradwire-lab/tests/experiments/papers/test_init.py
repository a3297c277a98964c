from __future__ import annotations

import ast
import dataclasses
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import JobError, SpecError
from gradwire_lab.experiments.claim import Basis, Claim, Verdict
from gradwire_lab.experiments.papers import BY_NAME, EXHIBITS, PAPERS, chosen
from gradwire_lab.experiments.papers.exhibit import Exhibit, OriginKind
from support.project import ROOT


def test_each_exhibit_has_a_name_of_its_own_and_belongs_to_a_paper() -> None:
    assert [each.name for each in EXHIBITS] == [*BY_NAME]
    for each in EXHIBITS:
        assert each.paper in PAPERS
        assert each.name not in PAPERS
        assert each.experiment.question.endswith("?")
        assert each.scaling.endswith(".")
        assert 0 < each.seconds[0] <= each.seconds[1]
        for full in (False, True):
            cells = each.experiment.cells(each.options(full))
            assert cells
            assert len({repr(sorted(cell.items())) for cell in cells}) == len(cells)


def test_all_quick_runs_together_are_expected_within_a_quarter_of_an_hour() -> None:
    assert sum(each.seconds[0] for each in EXHIBITS) < 15 * 60


def test_all_full_runs_together_are_expected_within_eight_hours() -> None:
    assert sum(each.seconds[1] for each in EXHIBITS) <= 8 * 3600


def test_a_paper_an_exhibit_or_all_are_chosen() -> None:
    assert chosen(None) == [*EXHIBITS]
    assert {each.paper for each in chosen("study")} == {"study"}
    assert [each.name for each in chosen("study-figure-8")] == ["study-figure-8"]
    with pytest.raises(
        SpecError, match=r"expected a paper \(study, .*\) or a name from .* --list, got 'alexnet'"
    ):
        chosen("alexnet")


def test_the_page_lists_each_in_its_order() -> None:
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    part = page.partition("## Tables and figures")[2].partition("\n## ")[0]
    listed = [line.split("`")[1] for line in part.splitlines() if "`" in line]
    assert listed == [each.name for each in EXHIBITS]


RECORDS = ROOT / "docs" / "reproduced"


def recorded() -> list[tuple[str, list[dict[str, Any]], list[Claim]]]:
    """Return the name, rows, and claims of each exhibit that has a record with the present fields."""
    found = []
    for exhibit in EXHIBITS:
        path = RECORDS / exhibit.name / "record.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if record.get("schema") == exhibit.experiment.schema:
            found.append((exhibit.name, record["rows"], exhibit.judge(record["rows"])))
    return found


COMPARATORS = {
    "study-table-1": {"parameter server", "tree", "ring", "butterfly"},
    "study-equations-1-to-4": {"star", "tree", "ring", "butterfly"},
    "study-figure-8": {"star", "tree", "ring", "butterfly"},
    "inceptionn-figure-1": {"one aggregator", "a: aggregators", "b: rings below", "c: rings"},
    "inceptionn-figure-7": {"snappy", "sz:2^-10", "truncate:16"},
    "inceptionn-table-iii": {"AlexNet", "HDC, 3 layers, He", "ResNet-50", "VGG-16"},
    "inceptionn-figure-12": {
        "WA",
        "WA+C",
        "WA, tree of aggregators",
        "INC",
        "INC+C",
        "INC+C, bounded",
        "INC+C, in NICs",
    },
    "inceptionn-figure-13": {"exact"},
    "inceptionn-figure-14": {"exact", "truncate:16", "truncate:22", "truncate:24"},
    "inceptionn-figure-15": {"WA", "INC"},
    "pipe-sgd-figure-4": {
        "PS-Sync",
        "D-Sync",
        "D-Sync+T",
        "D-Sync+Q",
        "Pipe-SGD",
        "Pipe-SGD+T",
        "Pipe-SGD+Q",
    },
    "pipe-sgd-figure-4-cifar100-convex": {"PS-Sync", "D-Sync", "D-Sync+T", "Pipe-SGD", "Pipe-SGD+T"},
    "pipe-sgd-section-3-2-terngrad": {"identity", "truncate:16", "quantize:8", "terngrad"},
    "a2dtwp-section-v": {"fp32", "bf16", "static:8", "static:16", "static:24", "awp", "delta"},
    "smart-nic-figure-2b": {"ring", "Rabenseifner", "binomial"},
    "smart-nic-section-v-b": {"naive", "overlapped", "layer-wise", "identity", "bfp:7x16"},
}
"""What the papers compare with each other, by exhibit: a removed method fails here."""


@pytest.mark.parametrize("name", COMPARATORS)
def test_the_paper_s_comparators_are_measured(name: str) -> None:
    (exhibit,) = chosen(name)
    cells = exhibit.experiment.cells(exhibit.full)
    found = {word for cell in cells for word in cell.values() if isinstance(word, str)}
    assert found >= COMPARATORS[name]


def test_a_record_without_a_comparator_s_rows_is_refused() -> None:
    refused = 0
    for name, rows, _ in recorded():
        (exhibit,) = chosen(name)
        options = json.loads((RECORDS / name / "record.json").read_text(encoding="utf-8"))["options"]
        exhibit.check_rows(options, rows)
        for cell in exhibit.experiment.cells(exhibit.full):
            for key, word in cell.items():
                if isinstance(word, str) and key != "data" and any(row.get(key) == word for row in rows):
                    rest = [row for row in rows if row.get(key) != word]
                    with pytest.raises(JobError, match="lacks rows: expected some with"):
                        exhibit.check_rows(options, rest)
                    refused += 1
    assert refused


def test_rows_in_another_order_have_the_same_verdicts() -> None:
    for name, rows, claims in recorded():
        (exhibit,) = chosen(name)
        turned = {claim.title: claim.verdict for claim in exhibit.judge(rows[::-1])}
        assert turned == {claim.title: claim.verdict for claim in claims}, name


def test_published_numbers_have_rules_with_two_sides() -> None:
    for name, _, claims in recorded():
        for claim in claims:
            published, wanted = claim.published, claim.wanted
            if published is not None and published.value is not None and not published.is_limit:
                assert math.isfinite(wanted.least), f"{name}: {claim.title}"
                assert math.isfinite(wanted.most), f"{name}: {claim.title}"


def test_figures_of_trainings_name_the_runs_that_they_rest_on() -> None:
    """A record with accuracies or errors is one of trainings; arithmetic and models need none."""
    for name, rows, claims in recorded():
        if any({"accuracy", "accuracies", "errors"} & row.keys() for row in rows):
            for claim in claims:
                is_model = claim.basis in (Basis.MODELLED, Basis.ARITHMETIC)
                assert is_model or claim.not_run or claim.rests_on, f"{name}: {claim.title}"


def test_dead_runs_turn_every_exhibit_of_trainings() -> None:
    """All of them end at chance, and so agree with each other."""
    for name, rows, _ in recorded():
        exhibit = next(each for each in EXHIBITS if each.name == name)
        dead = [
            {
                **row,
                **{key: _dead(key, row[key]) for key in ("accuracy", "accuracies", "losses") if key in row},
            }
            for row in rows
        ]
        if dead == rows:
            continue
        judged = (Basis.MEASURED, Basis.CALIBRATED)
        claims = [
            each
            for each in exhibit.judge(dead)
            if each.basis in judged
            and not each.not_run
            and not (each.rests_on and all(own.expected_failure for own in each.rests_on))
        ]
        assert {claim.verdict for claim in claims} == {Verdict.DID_NOT_LEARN}, name


def _dead(key: str, value: Any) -> Any:
    found = math.nan if key == "losses" else 0.1
    return [found] * len(value) if isinstance(value, list) else found


def has_number(value: object) -> bool:
    """Return whether a number is in a constant: in itself, a tuple, or a mapping."""
    if isinstance(value, Mapping):
        return any(map(has_number, value.values()))
    if isinstance(value, tuple | list):
        return any(map(has_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda each: str(each.name))
def test_every_option_and_number_has_its_origin(exhibit: Exhibit[Any]) -> None:
    module = vars(sys.modules[exhibit.claims.__module__])
    lines = re.findall(r"^([A-Z][A-Z0-9_, ]*)(?::.*)? = ", Path(module["__file__"]).read_text(), re.MULTILINE)
    own = {name for line in lines for name in line.split(", ")}
    numbers = {name for name in own if has_number(module[name])}
    options = {each.name for each in dataclasses.fields(exhibit.quick)}
    assert numbers | options == {*exhibit.origins}


RULES = ("Bound", "at_least", "at_most", "near", "within")
PLAIN = (0, 1, 2)
"""Numbers that need no name: none, all, and twice."""


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda each: str(each.name))
def test_a_rule_has_no_number_without_a_name_and_so_without_an_origin(exhibit: Exhibit[Any]) -> None:
    path = Path(vars(sys.modules[exhibit.claims.__module__])["__file__"])
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in RULES:
            given = [*call.args, *(each.value for each in call.keywords)]
            numbers = [each.value for each in given if isinstance(each, ast.Constant)]
            assert set(numbers) <= {*PLAIN}, ast.unparse(call)


def test_the_exhibits_whose_rule_and_option_share_an_origin_are_known() -> None:
    """By the place of a figure from which a number was set, in the paper or here."""
    found = {
        each.name: {
            origin.where.split(",")[0]
            for origin in each.origins.values()
            if origin.source is OriginKind.CALIBRATED
        }
        for each in EXHIBITS
    }
    assert {name: places for name, places in found.items() if places} == {
        "study-section-1-firecaffe": {"section 1"},
        "inceptionn-figure-3": {"table I"},
        "inceptionn-figure-12": {"table II"},
        "pipe-sgd-equations-2-to-7": {"figure 4"},
        "pipe-sgd-figure-4": {"section 3.1"},
        "a2dtwp-section-v": {"table II and table III"},
    }


def test_no_number_that_was_chosen_after_a_look_passes_for_one_before_it() -> None:
    for exhibit in EXHIBITS:
        for name, origin in exhibit.origins.items():
            looked = re.search(r"\bafter (a|the) (run|look)\b", origin.where)
            assert looked is None or origin.source is OriginKind.CALIBRATED, f"{exhibit.name}, {name}"


def test_a_figure_from_whose_counterpart_a_number_was_set_says_so_itself() -> None:
    """The judge turns only what an exhibit's claims overlook."""
    for name, rows, claims in recorded():
        (exhibit,) = chosen(name)
        assert [claim.basis for claim in exhibit.claims(rows)] == [claim.basis for claim in claims], name
