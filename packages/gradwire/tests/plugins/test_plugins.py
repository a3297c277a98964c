"""Entry points: which are found, what they may be, and what errors say of a package that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from gradwire import codecs, collectives, plugins
from gradwire.cli.lists import algorithm_specs, codec_specs
from gradwire.cli.main import commands
from gradwire.codecs import Identity, parse
from gradwire.codecs.wrappers import Scaled
from gradwire.collectives import ring
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.candidates import ALGORITHMS


@dataclass(frozen=True)
class Point:
    """An entry point; ``found`` is what it names, or what loading it raises."""

    group: str
    name: str
    found: object
    package: str = "example"

    @property
    def dist(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.package, version="1.5")

    def load(self) -> object:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Other(Identity):
    """A codec of another package."""

    name: ClassVar[str] = "other"
    wire_id: ClassVar[int] = 200


class Low(Other):
    wire_id: ClassVar[int] = 127


class Parting(Other):
    wire_id: ClassVar[int] = 131  # of last frames


Found = Callable[..., None]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Found]:
    """Yield a function: these entry points are installed, and no others."""

    def install(*points: Point) -> None:
        def of_group(group: str) -> list[Any]:
            return [each for each in points if each.group == group]

        monkeypatch.setattr(plugins, "entry_points", of_group)
        forget()

    yield install
    monkeypatch.undo()
    forget()


def forget() -> None:
    plugins._points.cache_clear()
    plugins.entry.cache_clear()


def test_names_are_sorted_and_entries_loaded_once(found: Found) -> None:
    found(Point(plugins.CODECS, "b", 2), Point(plugins.CODECS, "a", 1), Point(plugins.PAGES, "c", 3))
    assert plugins.names(plugins.CODECS) == ("a", "b")
    assert plugins.entry(plugins.CODECS, "a") == 1
    assert plugins.entry(plugins.CODECS, "c") is None
    assert plugins.origin(plugins.CODECS, "a") == "example==1.5"
    assert plugins.origin(plugins.CODECS, "c") is None


def test_a_package_that_cannot_be_loaded_is_named(found: Found) -> None:
    found(Point(plugins.CODECS, "a", ValueError("two\nlines")))
    reason = (
        r"'a' of the package example==1.5, in the group gradwire.codecs, cannot be loaded \(ValueError: two"
    )
    with pytest.raises(SpecError, match=reason):
        parse("a")
    found(Point(plugins.COMMANDS, "a", ModuleNotFoundError("none", name="torch.nn")))
    with pytest.raises(ModuleNotFoundError):  # which the command line explains
        commands()


def test_two_packages_with_one_name_are_refused(found: Found) -> None:
    found(Point(plugins.CODECS, "a", Other), Point(plugins.CODECS, "a", Other, "second"))
    reason = "expected one package that defines 'a' in gradwire.codecs, got example==1.5 and second==1.5"
    with pytest.raises(SpecError, match=reason):
        parse("a")


def test_a_place_is_a_module_or_what_is_in_it() -> None:
    assert plugins.resolve("gradwire.collectives.ring") is ring
    assert plugins.resolve("gradwire.plan:Plan") is Plan


def test_a_codec_is_found_by_its_name(found: Found) -> None:
    found(Point(plugins.CODECS, "other", Other), Point(plugins.CODECS, "fp16", Low))
    assert type(parse("other")) is Other
    assert parse("fp16").wire_id == 1  # a name of the table is the table's
    assert codec_specs("quantize:8,other") == ("quantize:8", "other")
    with pytest.raises(SpecError, match=r"unknown codec 'othar' .did you mean 'other'"):
        parse("othar")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (Low, "a wire id from 132 to 255 for codec other of package example==1.5, got 127; change Low"),
        (Parting, "a wire id from 132 to 255 for codec other of package example==1.5, got 131; change"),
        (Identity, "a subclass of gradwire.codecs.Codec with name = 'other' for codec other of package"),
        (7, "got 7; fix the package's entry point"),
    ],
)
def test_a_codec_that_frames_cannot_name_is_refused(found: Found, what: object, reason: str) -> None:
    found(Point(plugins.CODECS, "other", what))
    with pytest.raises(SpecError, match=reason.replace(".", r"\.")):
        parse("other")


def test_an_algorithm_is_found_by_its_name(found: Found) -> None:
    found(Point(plugins.ALGORITHMS, "other", ring), Point(plugins.ALGORITHMS, "none", parse))
    assert collectives.get("other") is ring
    assert algorithm_specs("hierarchical:2,ring+star,other") == ("hierarchical:2,ring+star", "other")
    assert "other" not in ALGORITHMS  # what the planner tries by itself
    reason = "algorithm none of package example==1.5: .* without ROTATES, chunks"
    with pytest.raises(SpecError, match=reason):
        collectives.get("none")


def test_ranks_agree_on_the_packages_of_a_plan(found: Found) -> None:
    found(Point(plugins.CODECS, "other", Other), Point(plugins.ALGORITHMS, "mine", ring))
    rules = [{"match": "bias$", "codec": "other"}]
    assert codecs.origins(Plan(parse("fp8")).encodings) == collectives.origins("ring") == {}
    assert codecs.origins(Plan(codecs=rules).encodings) == {"the package of codec other": "example==1.5"}
    assert collectives.origins("mine") == {"the package of algorithm mine": "example==1.5"}
    scaled: Any = SimpleNamespace(encodings=(Scaled(Other()),))
    assert codecs.origins(scaled.encodings) == codecs.origins(Plan(codecs=rules).encodings)


def test_commands_of_packages_come_after_its_own(found: Found) -> None:
    found(Point(plugins.COMMANDS, "any", {"plan": ("no", "no:no"), "other": ("do it", "example:run")}))
    known = commands()
    assert known["other"] == ("do it", "example:run")
    assert known["plan"][1] == "gradwire.cli.plan:run"
    assert [*known][-1] == "other"
    found(Point(plugins.COMMANDS, "any", [1]))
    reason = r"expected a mapping of commands for 'any' of example==1.5, got \[1\]"
    with pytest.raises(SpecError, match=reason):
        commands()
