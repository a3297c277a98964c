from __future__ import annotations

from pathlib import Path

from gradwire.page import Report, Section, render_all
from gradwire_lab.experiments.claim import Basis, Claim, Explanation, Published, Verdict, at_least, only
from gradwire_lab.experiments.learning import Goal, Trainings
from gradwire_lab.experiments.page import MARKS, Recorded, exhibit_section, read_all, summary
from gradwire_lab.experiments.papers.reproduce import Judged
from support.pages import Page
from support.recorded import BOTH, STUDY, TITLES, alter, record

FIELDS = {
    "machine": {"cores": 2, "processor": "<fast>"},
    "versions": {"torch": None, "python": "3"},
    "options": {"hosts": [2, 4], "rate": "1gbit"},
    "commit": None,
}


def html_of(section: Section) -> str:
    return render_all(Report("Records", "Fast.", [section]), [])


def test_the_summary_counts_by_paper_and_by_exhibit_and_names_what_is_missing(tmp_path: Path) -> None:
    alter(record(tmp_path), STUDY, lambda fields: [row.update(square=4) for row in fields["rows"]])
    page = Page(html_of(summary(read_all(tmp_path, BOTH), TITLES, ["study-figure-8"])))
    assert "1 explained, 1 reproduced" in page.text
    assert page.rows[1] == ["measured here, compared with the paper", "2", "1 explained, 1 reproduced"]
    assert page.rows[3:6] == [
        ["study: a study of <b>squares</b>", "1", "0"],
        ["pipe-sgd: a pipeline", "0", "1"],
        ["all", "1", "1"],
    ]
    assert ["study-table-i", STUDY.experiment.question, "1", "0"] in page.rows
    assert "What failed" not in page.text
    alter(tmp_path, STUDY, lambda fields: [row.update(square=1) for row in fields["rows"]])
    failed = Page(html_of(summary(read_all(tmp_path, BOTH), TITLES, [])))
    why = "1, and the rule is >= 9; explained: >= 4"
    assert ["study-table-i", "largest", "\u2717 not reproduced", why] in failed.rows
    places = [failed.text.index(part) for part in ("What was measured", "What failed", "Verdicts by paper")]
    assert places == sorted(places)
    assert "2 of 2 tables and figures were shortened; their rows say how." in failed.text
    assert "Exhibits without a record here: study-figure-8." in page.text


def test_the_summary_has_what_was_measured_then_modelled_then_what_failed_and_why() -> None:
    rule = Published("figure 2", 9.0, is_limit=True)
    dead = Trainings("WA+C", [0.1] * 3, [0.95] * 3, Goal(0.1, 0.98, "table I"))
    claims = [
        Claim("ratio", {"a": 9.0, "b": 2.0}, at_least(9), of_each=True, unit="x", published=rule),
        Claim("model", only(9), at_least(9), unit="", basis=Basis.MODELLED),
        Claim("sum", only(9), at_least(9), unit="", basis=Basis.ARITHMETIC),
        Claim("speed-up", only(23.8), at_least(2), unit="x", rests_on=[dead]),
        Claim("Snappy", only(1.2), at_least(1), unit="x", other_tool="expected snappy, got zlib."),
        Claim("SZ", only(None), at_least(1), not_run="pysz is missing."),
    ]
    failed = Judged(BOTH[1], failure="a host is gone")
    recorded = [Recorded(Judged(STUDY, claims), FIELDS), Recorded(failed, FIELDS)]
    page = Page(html_of(summary(recorded, TITLES, [])))
    assert page.rows[1:6] == [
        ["measured here, compared with the paper", "1", "1 not reproduced"],
        [
            "measured here, compared with something else",
            "2",
            "1 did not learn, 1 not reproduced",
        ],
        ["modelled", "1", "1 modelled"],
        ["not evidence: calibrated, or arithmetic", "1", "1 arithmetic"],
        ["not run", "2", "reasons below"],
    ]
    assert [row[1] for row in page.rows[7:11]] == ["speed-up", "ratio", "Snappy", BOTH[1].experiment.question]
    assert page.rows[7][3] == (
        "WA+C ends at 0.100 \u00b1 0.000, more than 2 points from the exact method's 0.950 \u00b1 0.000"
    )
    assert page.rows[8][3] == "5.50x (b: 2.00x), and the rule is each >= 9.00x"
    assert page.rows[9][3] == "expected snappy, got zlib."
    assert page.rows[10][3] == "a host is gone"


def test_a_section_has_figures_rule_verdict_reasons_erratum_scaling_and_options() -> None:
    claims = [
        Claim("a & b", {"m<1>": 2.0, "m2": 4.0}, at_least(1), system="here", of_each=True, unit="x"),
        Claim("c", only(0.5), at_least(0.9), published=Published("figure 2", (0.9, 0.95), "it says 9."),
              otherwise=Explanation("so it is.", at_least(0.4))),
    ]  # fmt: skip
    made = html_of(exhibit_section(Recorded(Judged(STUDY, claims), FIELDS)))
    page = Page(made)
    assert page.rows[1] == [
        "a & b here",
        "\u2713 reproduced",
        "table I",
        "",
        "3.00xm<1>: 2.00xm2: 4.00x",
        "each >= 1.00x",
    ]
    assert page.rows[2] == [
        "c",
        "\u2248 explained",
        "figure 2",
        "90.0% to 95.0%",
        "50.0%",
        ">= 90.0%; explained: >= 40.0%",
    ]
    for text in (
        "c: explained, because so it is.",
        "Erratum of figure 2: it says 9.",
        "table I, here: smaller numbers.",
        "Options: hosts 2, 4; rate 1gbit.",
    ):
        assert text in page.text
    assert made.count("<figure>") == 1


def test_what_was_not_run_says_why() -> None:
    page = Page(html_of(exhibit_section(Recorded(Judged(STUDY, failure="a host is gone"), FIELDS))))
    assert "\u2013 not run" in page.text
    assert "table I was not run: a host is gone" in page.text
    assert page.tables == 0


def test_each_verdict_has_a_word_and_a_sign_of_its_own() -> None:
    assert {*MARKS} == {*map(str, Verdict)}
    assert len({mark.sign for mark in MARKS.values()}) == len(Verdict)
    assert {name for name, mark in MARKS.items() if mark.tone == "good"} == {"exceeded", "reproduced"}
    assert {name for name, mark in MARKS.items() if mark.tone == "bad"} == {
        "did not learn",
        "not reproduced",
        "failed as declared",
    }
