from __future__ import annotations

from gradwire.tables import lines
from gradwire_lab.experiments.claim import (
    RATIO,
    Claim,
    Explanation,
    at_least,
    at_most,
    claims_parts,
    claims_table,
    only,
)


def test_claims_with_names_have_a_column_for_each_and_the_mean() -> None:
    claims = [
        Claim("shorter", {"vgg": 4.0, "resnet": 2.0}, at_least(3.5), "x86", unit=RATIO),
        Claim("saved", {"vgg": 0.5, "resnet": None}, at_least(0.1), "x86"),
    ]
    rows = [line.split() for line in lines(claims_table(claims, ["vgg", "resnet"]))]
    assert rows[0] == ["claim", "on", "vgg", "resnet", "mean", "wanted", "met"]
    assert rows[2] == ["shorter", "x86", "4.00x", "2.00x", "3.00x", ">=", "3.50x", "no"]
    assert rows[3] == ["saved", "x86", "50.0%", "-", "-", ">=", "10.0%", "no"]


def test_claims_with_one_figure_have_no_columns_of_names_and_systems() -> None:
    rows = [line.split() for line in lines(claims_table([Claim("error", only(0.02), at_most(0.03))]))]
    assert rows[0] == ["claim", "found", "wanted", "met"]
    assert rows[2] == ["error", "2.0%", "<=", "3.0%", "yes"]


def test_a_claim_that_is_explained_is_not_met_and_its_reason_follows() -> None:
    why = Explanation("cores are shared", at_least(0.05))
    told = Claim("saved", only(0.06), at_least(0.1), "x86", otherwise=why)
    below = Claim("saved", only(0.04), at_least(0.1), "power", otherwise=why)
    printed = lines(*claims_parts([told, below]))
    assert printed[2].split()[-3:] == [">=", "10.0%", "explained"]
    assert printed[3].split()[-1] == "no"
    assert [line for line in printed if "because" in line] == [
        "saved x86: explained, because cores are shared"
    ]
    assert claims_parts([]) == []
