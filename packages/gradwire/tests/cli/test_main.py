"""The command line itself: help, exit codes, and what it says where a command is missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.cli import main, plan
from gradwire.cli.codecs import table
from gradwire.cli.main import COMMANDS, ELSEWHERE, commands, start
from gradwire.tables import lines
from support.commands import left_by_its_reader


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_fits_a_screen_and_shows_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= 45
    assert max(len(line) for line in printed) <= 80
    assert "example:" in printed
    assert printed[printed.index("example:") + 1].startswith("  gradwire ")


def test_without_a_command_it_tells_what_to_do_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == start(commands())


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ([*COMMANDS], ["doctor", "line-rate", "plan", "profile", "run"]),
        ([*COMMANDS, "demo"], ["doctor", "demo", "line-rate", "plan", "profile", "run"]),
    ],
)
def test_the_start_names_only_commands_that_are_installed(known: list[str], shown: list[str]) -> None:
    printed = start(known).splitlines()
    assert len(printed) <= 40
    assert max(map(len, printed)) <= 80
    named = [re.search(r"^ .*\bgradwire ([a-z][a-z-]*)", line) for line in printed]
    assert [found[1] for found in named if found] == shown
    words = next(line for line in printed if line.startswith("  gradwire plan")).split()[2:]
    parsed = plan.parser().parse_args(words)
    plan._check(parsed)
    plan.read_request(parsed)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_command_of_a_missing_package_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    known = dict.fromkeys(COMMANDS, ("", ""))
    monkeypatch.setattr(sys.modules["gradwire.cli.main"], "commands", lambda: known)
    assert main([name, "--help"]) == 2
    package = ELSEWHERE[name]
    said = (
        f"gradwire {name} is a command of {package}, which is not installed; "
        f"run pip install ./packages/{package} in gradwire's source folder"
    )
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"gradwire: {said}\n")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gradwire 0")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("fly", "got 'fly'; see gradwire --help"),
        ("profil", "got 'profil' (did you mean 'profile'?); see gradwire --help"),
        ("codecs fp8 x", "expected no further argument, got 'x'; see gradwire codecs --help"),
        ("codecs --no-mesure", "of gradwire codecs, got --no-mesure (did you mean '--no-measure'?); see"),
        ("codecs fp9", "unknown codec 'fp9' (did you mean 'fp8'?)"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert "Traceback" not in printed.err


def test_a_bug_has_another_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.cli.codecs.run", lambda _words: [][1])
    assert main(["codecs"]) == 1
    assert "IndexError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "printed"),
    [
        (KeyboardInterrupt(), 130, "gradwire: interrupted\n"),
        (SystemExit(143), 143, "gradwire: ended by SIGTERM\n"),
        (SystemExit(129), 129, "gradwire: ended by SIGHUP\n"),
        (SystemExit("a plugin's reason"), 1, "a plugin's reason\n"),
        (OSError(28, "No space left on device"), 2, "No space left on device\n"),
    ],
)
def test_what_ends_a_command_is_told(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    code: int,
    printed: str,
) -> None:
    def ended(_words: object) -> None:
        raise raised

    monkeypatch.setattr("gradwire.cli.codecs.run", ended)
    assert main(["codecs"]) == code
    told = capsys.readouterr().err
    assert told.endswith(printed)
    assert told.count("\n") == 1


@pytest.mark.parametrize(("raised", "code"), [(None, 0), (1, 1), (3, 3)])
def test_a_command_may_exit_with_a_code_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised: int | None, code: int
) -> None:
    def leave(_words: object) -> None:
        sys.stdout.write("done\n")
        sys.exit(raised)

    monkeypatch.setattr("gradwire.cli.codecs.run", leave)
    assert main(["codecs"]) == code
    assert capsys.readouterr() == ("done\n", "")


def test_a_deleted_folder_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["codecs", "--no-measure"]) == 2
    said = "gradwire: the current folder has been deleted; change to an existing folder\n"
    assert capsys.readouterr() == ("", said)


def test_what_ends_the_search_for_settings_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["gradwire.cli.main"], "find_settings", interrupted)
    assert main(["codecs", "--no-measure"]) == 130
    assert capsys.readouterr() == ("", "gradwire: interrupted\n")


@pytest.mark.processes
def test_a_reader_who_leaves_ends_it_in_silence(tmp_path: Path) -> None:
    assert left_by_its_reader(["codecs", "--no-measure"], tmp_path) == (141, b"")
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_standard_output_may_be_closed() -> None:
    words = ["sh", "-c", '"$0" -m gradwire codecs --no-measure >&-', sys.executable]
    done = subprocess.run(words, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.processes
def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradwire", "codecs", "--no-measure"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == lines(table())
