"""Where the project's folders are, for tests that read its pages, scripts and examples."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
DOCS = ROOT / "docs"
