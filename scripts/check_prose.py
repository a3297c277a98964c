"""Check the prose of pages, docstrings, and comments: no literal translations, no sentence that runs on.

A script of our own, because proselint has no rules for such phrases and reads code as prose, and the package
of Vale on PyPI downloads its program from another host.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST = 45
PHRASES = {
    r"tells? whether": "'return whether', or 'say whether'",
    r"(is|are|was|were) told of": "name the action: 'rank 1 receives ...'",
    r"in question": "name the thing",
    r"comes? into question": "'is a candidate'",
    r"(sends?|makes?|holds?) what cannot be": "'invalid data'",
    r"(times|numbers|values|rates|levels|latencies|timeout|counters) that cannot be": "'invalid'",
    r"is nobody\b(?!')": "say what happens to a stranger",
    r"tells? the truth": "say what is exact, or what is reported",
    r"hides? bare": "'doesn't hide'",
    r"by the kernel's hand": "'by the kernel'",
    r"(later|latest) runs?": "say what is; history belongs to the changelog",
    r"who (comes|reads|writes|waits|asks|calls|catches|knows|does not)\b": "'a caller that', 'anyone who'",
    r"is no (number|text|tensor|rank|list|count|rate|codec|size|float)\b": "'isn't a ...'",
}
"""What a reader of English stumbles over, and what to write instead."""
OPENINGS = {
    r"(Returns|Tells|Gives|Makes|Says|Computes|Yields|Raises)\b": "begin with the imperative: 'Return ...'",
    r"(Tell|Say) (whether|which|how|why|for|of)\b": "begin with 'Return ...', or name the action",
}
"""How the docstring of a function must not begin."""
FENCE = re.compile(r"^```.*?^```|^<!--.*?-->$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`+[^`]*`+|\$[^$\n]+\$")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a Markdown page, without code, tables, and headings; a link is its text."""
    text = LINK.sub(r"\1", INLINE.sub("code", FENCE.sub("", page)))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        lines = [line for line in paragraph.splitlines() if not line.startswith(("#", "|", "    "))]
        yield from re.split(r"(?<=[.!?:;])[*)\"']*\s+", " ".join(" ".join(lines).split()))


def docstrings(source: str) -> Iterator[tuple[str, bool]]:
    """Yield every docstring of a module, and whether it is that of a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def comments(source: str) -> Iterator[str]:
    """Yield the comments of a Python module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def complaints(text: str) -> Iterator[str]:
    """Yield what is wrong with the phrases of a text."""
    plain = " ".join(INLINE.sub("code", text).split())
    for phrase, advice in PHRASES.items():
        for found in re.finditer(rf"\b{phrase}", plain, re.IGNORECASE):
            yield f"{plain[max(0, found.start() - 20) : found.end() + 20]!r}: write {advice}"


def check_page(page: str) -> Iterator[str]:
    """Yield what is wrong with a Markdown page."""
    yield from complaints(FENCE.sub("", page))
    for sentence in sentences(page):
        count = len(re.findall(r"[\w'-]+", sentence))
        if count > LONGEST:
            yield f"a sentence of {count} words ({LONGEST} at most): {sentence[:70]!r}..."


def check_module(source: str) -> Iterator[str]:
    """Yield what is wrong with the docstrings and comments of a Python module."""
    for text, of_function in docstrings(source):
        yield from complaints(text)
        for opening, advice in OPENINGS.items():
            if of_function and re.match(opening, text):
                yield f"{text[:50]!r}: {advice}"
    for comment in comments(source):
        yield from complaints(comment)


def main() -> int:
    """Print what is wrong, with its file; return the exit code."""
    pages = [*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")]
    modules = [
        path
        for room in (
            "packages/gradwire/src",
            "packages/gradwire-lab/src",
            "packages/gradwire-gateware/src",
            "bench",
            "examples",
            "scripts",
        )
        for path in (ROOT / room).rglob("*.py")
    ]
    found = [(path, text) for path in pages for text in check_page(path.read_text(encoding="utf-8"))]
    found += [(path, text) for path in modules for text in check_module(path.read_text(encoding="utf-8"))]
    for path, text in sorted(found):
        sys.stderr.write(f"{path.relative_to(ROOT)}: {text}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
