"""Settings files: which one counts, what they may say, and that the command line wins."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli import main
from gradwire.cli.settings import find_settings

PLAN = 'model = "300k"\nhosts = 3\nrate = "10mbit"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: below the root of a repository, below a folder that is none."""
    root = tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    (root / "below").mkdir()
    monkeypatch.chdir(root / "below")
    monkeypatch.delenv("GRADWIRE_SETTINGS", raising=False)
    return root / "below"


def file_of(folder: Path) -> str | None:
    found = find_settings(folder)
    return None if found is None else str(found.file)


def test_the_nearest_file_up_to_the_root_of_the_repository_counts(home: Path) -> None:
    (home.parent.parent / "gradwire.toml").write_text("[plan]\nhosts = 2\n")
    assert file_of(home) is None, "a folder above the repository may be another user's"
    (home.parent / "pyproject.toml").write_text("[tool.gradwire.plan]\nhosts = 2\n")
    assert file_of(home) == "../pyproject.toml"
    (home.parent / "gradwire.toml").write_text("")
    assert file_of(home) == "../gradwire.toml", "in one folder, it precedes pyproject.toml"
    (home / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert file_of(home) == "../gradwire.toml", "a file without the table doesn't count"
    (home / "pyproject.toml").write_text("this is not TOML")
    assert file_of(home) == "../gradwire.toml", "nor one that never names gradwire"
    (home / "gradwire.toml").write_text("")
    assert file_of(home) == "gradwire.toml"


def test_outside_of_a_repository_only_the_current_folder_counts(home: Path) -> None:
    (home.parent / "gradwire.toml").write_text("")
    (home.parent / ".git").rmdir()
    assert file_of(home) is None
    (home / "gradwire.toml").write_text("")
    assert file_of(home) == "gradwire.toml"


def test_a_parent_that_this_user_may_not_search_is_no_repository(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def refuse(path: Any, *words: Any, **options: Any) -> os.stat_result:
        if str(path) == str(home.parent / ".git"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, *words, **options)

    (home.parent / "gradwire.toml").write_text("")
    monkeypatch.setattr(os, "stat", refuse)
    assert file_of(home) is None


def test_a_variable_names_the_file_or_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "gradwire.toml").write_text("")
    (home.parent / "other.toml").write_text("[plan]\nhosts = 5\n")
    monkeypatch.setenv("GRADWIRE_SETTINGS", "../other.toml")
    assert file_of(home) == "../other.toml"
    monkeypatch.setenv("GRADWIRE_SETTINGS", "off")
    assert file_of(home) is None


def predicted(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, object], str]:
    """Return the request in the record of ``gradwire plan``, and what it says on standard error."""
    assert main(f"plan {words} --scale-to 0 --codecs identity --json -".split()) == 0
    out, err = capsys.readouterr()
    request: dict[str, object] = json.loads(out)["request"]
    return request, err


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwire.timing.environment import CodecCost, CodecPoint
    from gradwire.timing.line import HostCost

    def costs(codecs: list[object], *_: object) -> dict[str, CodecCost]:
        point = CodecPoint(1, 4.0, 0.0, 0.0, 0.0)
        return {str(each): CodecCost(str(each), (point,), 1e-5, True, 0.0) for each in codecs}

    monkeypatch.setattr("gradwire.planner.environment.measure_codecs", costs)
    monkeypatch.setattr("gradwire.planner.environment.measure_host", lambda *_: HostCost(1e-4, 1e-4, cores=4))


@pytest.mark.usefixtures("quick")
def test_the_command_line_wins_and_verbose_says_what_the_file_sets(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.parent / "pyproject.toml").write_text(
        f"[tool.gradwire.plan]\n{PLAN}algorithms = ['ring', 'star']\nelsewhere = false\n"
        "[tool.gradwire.train]\nnever = 'read'\n"
    )
    request, err = predicted("", capsys)
    assert (request["hosts"], request["rate"], err) == (3, "10mbit", predicted("", capsys)[1])
    assert request["algorithms"] == ["ring", "star"]
    request, err = predicted("--hosts=5 --rate 20mbit --verbose", capsys)
    assert (request["hosts"], request["rate"]) == (5, "20mbit")
    said = [line for line in err.splitlines() if line.startswith("gradwire: ")]
    assert said == [
        "gradwire: ../pyproject.toml sets --model=300k",
        "gradwire: ../pyproject.toml sets --algorithms=ring,star",
    ]


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("[plann]", "plan", "expected a command in [plann], got 'plann' (did you mean 'plan'?)"),
        ("plan = 3", "plan", "gradwire.toml: expected a table for [plan], got 3"),
        ("[plan]\nhost = 3", "plan", "of gradwire plan in [plan], got 'host' (did you mean 'hosts'?)"),
        ("[plan]\nhelp = true", "plan", "expected an option of gradwire plan in [plan], got 'help'"),
        ("[plan]\nhosts = true", "plan", "expected a value for 'hosts' in [plan], got true"),
        ("[plan]\nelsewhere = 1", "plan", "expected true or false for 'elsewhere' in [plan], got 1"),
        ("[plan]\nrate = 1979-05-27", "plan", "expected a string, a number, or a list of both for 'rate'"),
        ("[plan]\nhosts = 'x'", "plan", "expected a whole number, got 'x' (gradwire.toml sets --hosts)"),
        (f"[plan]\n{PLAN}", "plan --measured x.json", "(gradwire.toml sets --model, --hosts, --rate)"),
        ("[plan", "plan", "the settings gradwire.toml are not valid TOML: "),
        ("\xff", "plan", "the settings gradwire.toml cannot be read: it isn't UTF-8 text"),
        ("[doctor]\nquiet = true\nverbose = true", "doctor", "argument --verbose: not allowed with"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence_that_names_it(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, words: str, said: str
) -> None:
    (home / "gradwire.toml").write_bytes(text.encode("latin-1"))
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert "gradwire.toml" in err


def test_a_file_that_the_variable_names_must_exist(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADWIRE_SETTINGS", str(home / "none.toml"))
    assert main(["codecs", "--no-measure"]) == 2
    assert "GRADWIRE_SETTINGS: expected a file with settings or 'off', got" in capsys.readouterr().err


def test_one_option_of_a_pair_that_excludes_each_other_replaces_the_other(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "gradwire.toml").write_text("[codecs]\nquiet = true\nno-measure = true\n")
    assert main(["codecs", "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("spec")
    assert err == "gradwire: gradwire.toml sets --no-measure\n"
