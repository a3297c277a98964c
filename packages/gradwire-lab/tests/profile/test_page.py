from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.autotune.estimate import Estimate
from gradwire.page import MODULES
from gradwire.profile.run import PAGES, SCHEMA, ProfileOptions, estimates, page_of, verdict
from gradwire.records import make_record, to_json
from support import observations
from support.pages import Page


def made(monkeypatch: Any) -> tuple[Any, list[Estimate]]:
    from gradwire.profile import run

    monkeypatch.setattr(run, "estimator", lambda observed, *_: observations.estimator(observed))
    observed = observations.observed()
    options = ProfileOptions(("script",), ("100mbit",), hosts=(4,), json=Path("profile.json"))
    found = estimates(observed, options)
    values = {
        "observed": observed.values(),
        "estimates": [each.values() for each in found.estimates],
        "scaling": [each.values() for each in found.scaling],
    }
    return json.loads(to_json(make_record(SCHEMA, values))), list(found.estimates)


def test_the_page_has_what_was_observed_and_a_row_for_each_network(monkeypatch: Any) -> None:
    record, found = made(monkeypatch)
    html = page_of(record)
    page = Page(html)
    assert page.headings[0] == (1, "gradwire profile: DDP on 4 ranks")
    assert verdict(found[0]) in page.text
    assert "DDP on 4 ranks, " in page.text
    assert [row[0] for row in page.rows if row[0] in ("this one", "100mbit")] == ["this one", "100mbit"]
    assert page_of(record) == html, "the same bytes"
    assert PAGES[SCHEMA] is page_of
    assert MODULES[SCHEMA.rpartition("/")[0]] == page_of.__module__


def test_the_verdict_follows_from_the_first_estimate(monkeypatch: Any) -> None:
    first = made(monkeypatch)[1][0]
    faster = replace(first, plain_s=0.4, step_s=0.2, spread=0.1)
    slower = replace(faster, plain_s=0.2, step_s=0.4)
    assert verdict(faster) == "On this network, a step would be 1.82-2.2x as fast: 200ms instead of 400ms."
    for step_s in (0.37, 0.43):
        even = verdict(replace(faster, step_s=step_s))
        assert even.startswith("On this network, a step would take about the same time with gradwire: ")
    noisy = verdict(replace(faster, spread=0.16))
    assert noisy.startswith("On this network, steps are too noisy to estimate the gain: ")
    assert verdict(slower) == "On this network, gradwire would not shorten a step: 400ms instead of 200ms."
    assert verdict(replace(faster, network="1gbit")).startswith("On 1gbit, ")


def test_the_gain_by_hosts_goes_through_the_first_estimate(monkeypatch: Any) -> None:
    record, (first, *_) = made(monkeypatch)
    assert [row["hosts"] for row in record["scaling"]] == [1, 2, 4, 8, 16, 32, 64]
    (there,) = (row for row in record["scaling"] if row["hosts"] == first.hosts)
    assert there["step_s"] == pytest.approx(first.step_s)
    assert there["ddp_s"] == pytest.approx(first.plain_s)
    assert there["bf16_hook_s"] < there["ddp_s"]
    html = page_of(record)
    assert html.index('id="hosts-caption"') < html.index("<table"), "it is the hero"
    assert ["hosts", "DDP", "bf16 hook", "with gradwire"] in [row[:4] for row in Page(html).rows]


def test_a_record_of_an_older_version_has_bars_instead(monkeypatch: Any) -> None:
    record, _ = made(monkeypatch)
    del record["scaling"]
    html = page_of(record)
    assert html.index('id="steps-caption"') < html.index("<table")
    assert "More or fewer hosts" not in html


def test_a_notebook_shows_an_estimate_as_a_table(monkeypatch: Any) -> None:
    _, (first, *_) = made(monkeypatch)
    page = Page(replace(first, network="<b>")._repr_html_())
    assert page.rows[1][:2] == ["<b>", "4"]
    assert "Estimate for 4 hosts, network <b>" in page.text
