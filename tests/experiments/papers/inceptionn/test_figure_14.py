from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.inceptionn.figure_14 import EXHIBIT, SCHEMES, Options, codec_of

RATIOS = {"truncate:16": 2.0, "truncate:22": 3.2, "truncate:24": 4.0}


def rows(**changed: object) -> list[dict[str, object]]:
    """Figures of a network that keeps every claim but those of errata; ``changed`` ones by scheme."""
    found = []
    for scheme in SCHEMES:
        row = {"accuracies": [0.95], "ratios": [RATIOS.get(scheme, 8.0)], "errors": [2**-7]}
        if scheme == "inceptionn:2^-6":
            row |= {"ratios": [14.9], "errors": [2**-6]}
        if scheme == "truncate:24":
            row |= {"accuracies": [0.85]}
        found.append({"model": "cnn", "seed": 1, "scheme": scheme, **row, **changed.get(scheme, {})})  # type: ignore[dict-item]
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
    assert {verdict for text, verdict in found.items() if text not in explained} == {Verdict.REPRODUCED}


def test_altered_data_fails() -> None:
    def failed(**changed: object) -> list[str]:
        found = verdicts(rows(**changed))
        return [text for text, verdict in found.items() if verdict is Verdict.NOT_REPRODUCED]

    assert failed() == []
    assert failed(**{"inceptionn:2^-6": {"errors": [2**-5]}}) == ["largest error at 0.015625"]
    assert failed(**{"inceptionn:2^-10": {"errors": [2**-6]}}) == ["largest error at 0.000976562"]
    assert failed(**{"inceptionn:2^-6": {"ratios": [10.0]}}) == ["ratio at 2^-6, best network"]
    assert failed(**{"inceptionn:2^-10": {"ratios": [2.0]}}) == ["ratio at 2^-10"]
    assert failed(**{"truncate:16": {"ratios": [5.0]}}) == ["ratio of truncations"]
    assert failed(**{"inceptionn:2^-8": {"accuracies": [0.9]}}) == ["accuracy lost by 2^-8, cnn"]
    lost = {"inceptionn:2^-10, scaled": {"accuracies": [0.9]}}
    assert failed(**lost) == ["accuracy lost by 2^-10 with a scale"]


def test_schemes_are_codecs() -> None:
    assert codec_of("exact") is None
    assert str(codec_of("truncate:22")) == "truncate:22"
    assert "inceptionn:2^-10" in str(codec_of("inceptionn:2^-10, scaled"))
    assert codec_of("inceptionn:2^-10, scaled") != codec_of("inceptionn:2^-10")


def test_ratios_and_errors_are_kept_over_the_training() -> None:
    found = perform(EXHIBIT.experiment, Options((("cnn", (1,)),), 1), quiet=True)
    by_scheme = {row["scheme"]: row for row in found}
    assert by_scheme["exact"]["ratios"] == []
    assert set(by_scheme["exact"]["errors"]) == {0.0}
    assert len(by_scheme["truncate:16"]["errors"]) == 14
    assert [round(each, 2) for each in by_scheme["truncate:16"]["ratios"]] == [2.0] * 4
    assert max(by_scheme["inceptionn:2^-10"]["errors"]) <= 2**-7
