from __future__ import annotations

from pickle import dumps, loads

from gradwire_lab.text_enum import TextEnum


class Colour(TextEnum):
    RED = "red"
    DEEP_BLUE = "deep blue"


def test_members_are_text_in_every_form() -> None:
    blue = Colour.DEEP_BLUE
    assert blue == "deep blue"
    assert [str(blue), f"{blue}", f"{blue:>10}", "".join([blue]), blue.upper()] == [
        "deep blue",
        "deep blue",
        " deep blue",
        "deep blue",
        "DEEP BLUE",
    ]
    assert {"deep blue": 1}[blue] == 1


def test_members_are_found_by_their_text_and_survive_a_pickle() -> None:
    assert Colour("red") is Colour.RED
    assert loads(dumps(Colour.RED)) is Colour.RED
