from __future__ import annotations

import re
import subprocess
from importlib.metadata import version as version_of
from pathlib import Path

import pytest

from gradwire import version as module
from gradwire.version import EXTRAS, NEEDED, commit, how_to_install, import_problem, installed, version
from support.project import ROOT, read_toml


def test_the_version_is_that_of_pyproject() -> None:
    project = read_toml(ROOT / "packages/gradwire/pyproject.toml")["project"]
    assert version() == project["version"]


def test_the_citation_has_the_same_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("version:")] == [f"version: {version()}"]


def test_packages_are_looked_up_by_name() -> None:
    assert installed("torch") == version_of("torch")
    assert installed("no-such-package-anywhere") is None


def test_the_commit_is_that_of_the_source_tree() -> None:
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    commit.cache_clear()
    assert (commit() or "").removesuffix("+changed") == head


def test_what_is_installed_in_another_tree_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "version.py").touch()
    monkeypatch.setattr(module, "__file__", str(tmp_path / "version.py"))
    assert commit.__wrapped__() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit.__wrapped__() is None


def test_a_change_in_any_package_changes_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records name the commit, and experiments are in a package of their own."""
    own, exhibit = (tmp_path / "packages" / each / "src" / "version.py" for each in ("core", "lab"))
    for path in (own, exhibit, tmp_path / "page.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(module, "__file__", str(own))
    clean = commit.__wrapped__()
    (tmp_path / "page.md").write_text("a page is no source", encoding="utf-8")
    assert commit.__wrapped__() == clean
    exhibit.write_text("CHANGED = True\n", encoding="utf-8")
    assert commit.__wrapped__() == f"{clean}+changed"


@pytest.mark.parametrize("extra", ["train", "papers", "gateware", "mpi", "lightning", "huggingface", "plots"])
def test_an_extra_that_is_named_exists(extra: str) -> None:
    package = EXTRAS.get(extra, "gradwire")
    path = ROOT / "packages" / package / "pyproject.toml"
    assert extra in read_toml(path)["project"]["optional-dependencies"]
    assert f"'./packages/{package}[{extra}]'" in how_to_install(extra)


def test_the_packages_that_are_needed_are_those_of_the_project() -> None:
    project = read_toml(ROOT / "packages/gradwire/pyproject.toml")["project"]
    everywhere = [each for each in project["dependencies"] if ";" not in each]  # not those for old Pythons
    assert {re.split("[<>=]", each)[0] for each in everywhere} == {*NEEDED}


def test_a_package_that_cannot_be_imported_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "damaged_package.py").write_text("raise RuntimeError('two\\nlines')")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_problem("json") == ""
    assert import_problem("damaged_package") == r"RuntimeError: two\nlines"
    assert import_problem("no_such_package") == "ModuleNotFoundError: No module named 'no_such_package'"
