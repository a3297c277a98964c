"""Options by their descriptions: words, defaults, and what they may be."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradwire.errors import GradwireError
from gradwire_lab.experiments.experiment import (
    FOLDER,
    CheckedOptions,
    add_options,
    option,
    read_options,
    sizes_between_commas,
)


@dataclass(frozen=True)
class BakeryOptions(CheckedOptions):
    """The breads, and the oven."""

    breads: tuple[str, ...] = option(("rye", "spelt"), "to bake", known=("rye", "spelt", "corn"))
    grams: tuple[int, ...] = option((500, 1000), "of each", least=100)
    ovens: int = option(2, "number of ovens", least=1)
    sizes: tuple[int, ...] = option((1 << 20,), "of recipes", shown="1MiB", read=sizes_between_commas)
    salt: str | None = option("sea", "leave it out", name="--unsalted", is_switch=True, read=lambda _: None)
    late: bool = option(False, "at night", is_switch=True)
    recipes: Path | None = option(None, "a folder", shown="the baker's own", value=FOLDER)
    rent: str = option("none", "a house", value="TEXT", read=lambda text: text or "free", always=True)
    guests: int = 3


def read(*said: str) -> BakeryOptions:
    parser = argparse.ArgumentParser()
    add_options(parser, BakeryOptions)
    return read_options(BakeryOptions, parser.parse_args(said))


def test_missing_options_keep_their_defaults_but_for_those_that_are_always_read() -> None:
    assert read() == BakeryOptions(rent="free")


def test_words_become_the_fields_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)
    said = "--breads corn,rye,corn --grams 300,200 --ovens 4 --sizes 8MiB,1MB --unsalted --late --rent 5"
    found = read(*said.split(), "--recipes", tmp_path.name)
    assert found == BakeryOptions(
        ("corn", "rye"), (300, 200), 4, (1_000_000, 8 << 20), None, late=True, recipes=tmp_path, rent="5"
    )


def test_help_shows_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "to bake (default: rye,spelt)",
        "of each (default: 500,1000)",
        "--ovens N",
        "of recipes (default: 1MiB)",
        "--late",
    ):
        assert text in printed
    assert "guests" not in printed


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("--breads wheat", "expected --breads from rye, spelt, corn, got 'wheat'"),
        ("--breads=", "expected --breads from rye, spelt, corn, got 'nothing'"),
        ("--grams 99,100", "expected --grams of at least 100, got 99"),
        ("--grams all", "for --grams, got 'all'"),
        ("--ovens 0", "expected --ovens of at least 1, got 0"),
        ("--sizes 0", "of at least 1 byte"),
        ("--recipes /nowhere", "expected a folder for --recipes, got /nowhere; pass an existing folder"),
    ],
)
def test_a_mistake_is_one_sentence(said: str, reason: str) -> None:
    with pytest.raises(GradwireError, match=reason):
        read(*said.split())
