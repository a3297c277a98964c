from __future__ import annotations

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.inceptionn.figure_14 import (
    EXHIBIT,
    SCHEMES,
    codec_of,
)
from gradwire_lab.experiments.papers.inceptionn.training import TrainingOptions

RATIOS = {"truncate:16": 2.0, "truncate:22": 3.2, "truncate:24": 4.0}


def rows(seeds: int = 3, **changed: object) -> list[dict[str, object]]:
    """Figures of a network that keeps every claim but those of errata; ``changed`` ones by scheme."""
    found = list[dict[str, object]]()
    for scheme in SCHEMES:
        row = {"accuracies": [0.95], "ratios": [RATIOS.get(scheme, 8.0)], "errors": [2**-7]}
        if scheme == "inceptionn:2^-6":
            row |= {"ratios": [14.9], "errors": [2**-6]}
        if scheme == "truncate:24":
            row |= {"accuracies": [0.85]}
        row |= {"network": "CNN", "data": "digits", "scheme": scheme, **changed.get(scheme, {})}  # type: ignore[dict-item]
        found += [row | {"seed": seed} for seed in range(seeds)]
    return found


def verdicts(found: list[dict[str, object]]) -> dict[str, Verdict]:
    return {claim.text: claim.verdict for claim in EXHIBIT.claims(found)}


def test_errata_are_explained_and_the_rest_is_reproduced() -> None:
    found = verdicts(rows())
    explained = {text for text, verdict in found.items() if verdict is Verdict.EXPLAINED}
    assert explained == {
        "largest error at 0.000976562",
        "largest error at 0.00390625",
        "accuracy lost by 24 truncated bits, worst network",
    }
    assert found.pop("largest ratio of a truncation: 32 bits over the kept bits") is Verdict.ARITHMETIC
    assert {verdict for text, verdict in found.items() if text not in explained} == {Verdict.REPRODUCED}


def test_a_scheme_that_the_paper_has_not_is_compared_with_nothing_published() -> None:
    own = [claim.text for claim in EXHIBIT.claims(rows()) if claim.published is None]
    assert own == ["accuracy lost by 2^-10, scaled, CNN"]


def test_altered_data_fails() -> None:
    def failed(**changed: object) -> list[str]:
        found = verdicts(rows(**changed))  # type: ignore[arg-type]
        return [text for text, verdict in found.items() if verdict is Verdict.NOT_REPRODUCED]

    at_6 = "ratio at 2^-6, largest of all networks"
    assert failed() == []
    assert failed(**{"inceptionn:2^-6": {"errors": [2**-5]}}) == ["largest error at 0.015625"]
    assert failed(**{"inceptionn:2^-10": {"errors": [2**-6]}}) == ["largest error at 0.000976562"]
    for ratio in (10.0, 16.0):
        assert failed(**{"inceptionn:2^-6": {"ratios": [ratio]}}) == [at_6]
    for ratio in (2.0, 13.0):
        assert failed(**{"inceptionn:2^-10": {"ratios": [ratio]}}) == ["ratio at 2^-10, CNN"]
    assert failed(**{"truncate:16": {"ratios": [5.0]}}) == [
        "largest ratio of a truncation: 32 bits over the kept bits"
    ]
    assert failed(**{"inceptionn:2^-8": {"accuracies": [0.9]}}) == ["accuracy lost by 2^-8, CNN"]
    lost = {"inceptionn:2^-10, scaled": {"accuracies": [0.9]}}
    assert failed(**lost) == ["accuracy lost by 2^-10, scaled, CNN"]


def test_ratios_of_dead_trainings_count_for_nothing() -> None:
    dead = {"inceptionn:2^-6": {"accuracies": [0.1], "ratios": [16.0]}}
    found = verdicts(rows(**dead))  # type: ignore[arg-type]
    assert found["ratio at 2^-6, largest of all networks"] is Verdict.DID_NOT_LEARN
    assert found["accuracy lost by 2^-6, CNN"] is Verdict.NOT_REPRODUCED
    alive = [{**row, "network": "HDC"} for row in rows()]
    half = verdicts([*rows(**dead), *alive])  # type: ignore[arg-type]
    assert half["ratio at 2^-6, largest of all networks"] is Verdict.DID_NOT_LEARN, "one of two is dead"
    every = verdicts([row | {"accuracies": [0.1]} for row in rows()])
    every.pop("largest ratio of a truncation: 32 bits over the kept bits")
    assert set(every.values()) == {Verdict.DID_NOT_LEARN}, "dead runs agree with each other"


def test_one_seed_is_too_short() -> None:
    assert verdicts(rows(seeds=1))["ratio at 2^-10, CNN"] is Verdict.TOO_SHORT


def test_schemes_are_codecs() -> None:
    assert codec_of("exact") is None
    assert str(codec_of("truncate:22")) == "truncate:22"
    assert "inceptionn:2^-10" in str(codec_of("inceptionn:2^-10, scaled"))
    assert codec_of("inceptionn:2^-10, scaled") != codec_of("inceptionn:2^-10")


def test_ratios_and_errors_are_kept_over_the_training() -> None:
    found = perform(EXHIBIT.experiment, TrainingOptions(("CNN",), (1,), 14), quiet=True)
    by_scheme = {row["scheme"]: row for row in found}
    assert by_scheme["exact"]["ratios"] == []
    assert len(by_scheme["truncate:16"]["errors"]) == 4
    assert [round(each, 2) for each in by_scheme["truncate:16"]["ratios"]] == [2.0] * 4
    assert max(by_scheme["inceptionn:2^-10"]["errors"]) <= 2**-7
