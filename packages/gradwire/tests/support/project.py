"""Where the repository's folders are, for tests that read its pages, scripts and examples."""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib  # noqa: TID251 - the module that chooses
else:
    import tomli as tomllib

TESTS = Path(__file__).parents[1]
ROOT = next(each for each in TESTS.parents if (each / "CONTRIBUTING.md").exists())
DOCS = ROOT / "docs"
SOURCES = os.pathsep.join(map(str, [*sorted(ROOT.glob("packages/*/src")), sysconfig.get_path("purelib")]))
"""The packages' sources and what else is installed, as PYTHONPATH has them: also entry points."""
ALL_TESTS = [*sorted(ROOT.glob("packages/*/tests")), ROOT / "tests"]
TESTS_PATH = os.pathsep.join(map(str, [ROOT, *ALL_TESTS]))


def test_name(path: str) -> str:
    """Return the path of a test below its folder of tests, whichever package that is of."""
    folder = next((each for each in ALL_TESTS if (ROOT / path).is_relative_to(each)), ROOT)
    return (ROOT / path).relative_to(folder).as_posix()


def read_toml(path: Path) -> Any:
    """Return the content of a TOML file, such as a package's pyproject.toml."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
