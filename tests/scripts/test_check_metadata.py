from __future__ import annotations

import importlib.util
import re
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from support.project import ROOT, read_toml

PACKAGES = ("gradwire", "gradwire-lab", "gradwire-gateware")
PROJECTS = {name: read_toml(ROOT / "packages" / name / "pyproject.toml") for name in PACKAGES}


@pytest.fixture(scope="module")
def check_metadata() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_metadata", ROOT / "scripts" / "check_metadata.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wheel(folder: Path, body: str, *, urls: bool = True, python: str = ">=3.10") -> str:
    lines = ["Metadata-Version: 2.4", "Name: x", "Version: 1", f"Requires-Python: {python}"]
    names = ("Homepage", "Documentation", "Source", "Changelog", "Issues") if urls else ()
    lines += [f"Project-URL: {name}, https://example.org" for name in names]
    path = folder / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x-1.dist-info/METADATA", "\n".join(lines) + f"\n\n{body}\n")
    return str(path)


def test_a_complete_description_passes(check_metadata: ModuleType, tmp_path: Path) -> None:
    body = "[a](https://x.org/a) [b](#b)\n```python\nx[0](y)\n```\n"
    assert check_metadata.main([_wheel(tmp_path, body)]) == 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("![p](docs/p.png)", "docs/p.png"),
        ("[p](docs/p.md#x)", "docs/p.md#x"),
        ('<img src="docs/p.png">', "docs/p.png"),
        ("", "a description"),
    ],
)
def test_what_leads_nowhere_is_named(
    check_metadata: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, named: str
) -> None:
    assert check_metadata.main([_wheel(tmp_path, body)]) == 1
    assert named in capsys.readouterr().out


def test_missing_addresses_and_another_python_are_named(
    check_metadata: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_metadata.main([_wheel(tmp_path, "x", urls=False, python=">=3.9")]) == 1
    told = capsys.readouterr().out
    assert "Changelog" in told
    assert ">=3.9" in told


def test_no_wheel_at_all_is_a_failure(check_metadata: ModuleType) -> None:
    assert check_metadata.main([]) == 1


def _description() -> str:
    hook = PROJECTS["gradwire"]["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    return text


def test_the_readme_has_absolute_links_to_files_that_exist(check_metadata: ModuleType) -> None:
    text = _description()
    assert check_metadata.relative_targets(text) == []
    project = PROJECTS["gradwire"]["project"]
    at_tag = f"{project['urls']['Source']}/blob/v{project['version']}/"
    raw = at_tag.replace("https://github.com", "https://raw.githubusercontent.com").replace("/blob/", "/")
    links, pictures = (re.findall(re.escape(each) + r"([^)#\"\s]+)", text) for each in (at_tag, raw))
    assert links
    assert pictures
    assert [each for each in (*links, *pictures) if not (ROOT / each).exists()] == []
    assert all(each.endswith((".png", ".svg")) for each in pictures)


def test_all_packages_name_the_same_addresses_version_and_python() -> None:
    projects = [each["project"] for each in PROJECTS.values()]
    for name in ("urls", "version", "requires-python"):
        assert all(each[name] == projects[0][name] for each in projects), name
    version = projects[0]["version"]
    for each in ("Documentation", "Changelog"):
        path = projects[0]["urls"][each].removeprefix(f"{projects[0]['urls']['Source']}/blob/v{version}/")
        assert (ROOT / path).exists()
