"""The Dockerfile and the conda recipe agree with the package that they build."""

from __future__ import annotations

import fnmatch
import re
from importlib import import_module
from typing import Any

import pytest

from support.project import ROOT, read_toml

PYPROJECT = read_toml(ROOT / "packages/gradwire/pyproject.toml")
PROJECT = PYPROJECT["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, with their arguments on one line."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def test_the_last_stage_is_small_and_runs_as_a_user() -> None:
    stages = "\n".join(f"{name} {rest}" for name, rest in instructions()).split("FROM ")
    last = stages[-1]
    assert "apt-get" not in last, "the compiler stays in the first stage"
    assert "\nUSER 1000\n" in last
    assert last.index("USER 1000") < last.index("CMD")
    assert 'CMD ["gradwire", "doctor"]' in last


def test_the_image_is_made_from_files_that_the_context_has() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    copied = [word for name, rest in instructions() if name == "COPY" for word in rest.split()[:-1]]
    sources = [word for word in copied if not word.startswith(("--", "/"))]
    assert sources == ["README.md", "LICENSE", "packages/gradwire"]
    for each in sources:
        assert (ROOT / each).exists()
        assert any(fnmatch.fnmatch(each, pattern) for pattern in kept)
    for link in ("README.md", "LICENSE"):  # they point above the package
        assert (ROOT / "packages/gradwire" / link).resolve() == ROOT / link


def test_it_asks_for_the_torch_of_the_package() -> None:
    assert f"ARG TORCH={_needs('torch')}" in DOCKERFILE


def _needs(name: str) -> str:
    (found,) = (each for each in PROJECT["dependencies"] if re.match(rf"{name}\b", each))
    return str(found)


@pytest.fixture(scope="module")
def recipe() -> Any:
    yaml: Any = import_module("yaml")  # of kubernetes-validate
    return yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text(encoding="utf-8"))


def test_the_recipe_has_the_version_and_addresses_of_the_package(recipe: Any) -> None:
    assert recipe["context"]["version"] == PROJECT["version"]
    assert recipe["about"]["homepage"] == PROJECT["urls"]["Homepage"]
    assert recipe["about"]["documentation"] == PROJECT["urls"]["Documentation"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert (ROOT / "recipe" / recipe["source"]["path"]).resolve() == ROOT / "packages/gradwire"


def test_the_recipe_has_the_requirements_of_the_package(recipe: Any) -> None:
    run = {_in_pip_words(each).replace("pytorch", "torch") for each in recipe["requirements"]["run"]}
    assert run == {*map(_plain, PROJECT["dependencies"]), f"python{PROJECT['requires-python']}"}
    host = {_plain(each) for each in recipe["requirements"]["host"]} - {"python", "pip"}
    assert host == {*map(_plain, PYPROJECT["build-system"]["requires"])}


def _in_pip_words(requirement: Any) -> str:
    if isinstance(requirement, str):
        return _plain(requirement)
    python = re.fullmatch(r'match\(python, "<(.+)"\)', requirement["if"])
    assert python is not None
    return _plain(f"{requirement['then']}; python_version < '{python[1]}'")


def _plain(requirement: str) -> str:
    return requirement.replace(" ", "")
