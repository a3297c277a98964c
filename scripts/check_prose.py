"""Check the prose of pages, docstrings, comments, and texts: the field's words, self-contained sentences.

Prints file, line, and rule of each finding, and fails if there are findings.

The script is custom, because proselint has no rules for such phrases and reads code as prose, and the Vale
package on PyPI downloads its program from another host.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LONGEST = 45
"""The most words in a sentence of a page."""
LONGEST_FIRST = 25
"""The most words in the first sentence of a docstring, because help and lists show only this sentence."""
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
    r"says? (what|which one) is wrong": "'return the fault'",
    r"(is|are) none that": "'is invalid'",
    r"one (host|rank|chunk|frame|step|byte|word|algorithm) more than": "'one more ... than'",
    r"(0|null|None|null pointer|nothing) where\b": "'0 if ...'",
    r"announces? (another|other)": "'declares a different ...'",
    r"is no (number|text|tensor|rank|list|count|rate|codec|size|float)\b": "'isn't a ...'",
}
"""Unidiomatic phrases in docstrings, comments, and pages, with replacements."""
OPENINGS = {
    r"(Returns|Tells|Gives|Makes|Says|Computes|Yields|Raises)\b": "begin with the imperative: 'Return ...'",
    r"(Tell|Say) (whether|which|how|why|for|of)\b": "begin with 'Return ...', or name the action",
}
"""Openings that a function's docstring must not have."""
HEADLESS = re.compile(
    r"(What|Which|Who|Whoever|Those|That|Where|When|Of|For|How|So many|None of|(Return|Yield) what)\b"
)
"""Openings that no docstring may have: the first sentence needs a noun or a verb."""
FRAGMENT = re.compile(r"(which|whose|of which|of these|of those)\b", re.IGNORECASE)
"""Openings that no comment beside code may have, for the same reason."""
WORDS = {
    r"(?<!`)\b(?i:told)\b(?!`)|\b(is|are|was|were|be|been) asked\b": "'receives', 'is passed', 'requests'",
    r"\b(?i:nobody|whoever)\b": "'no rank', 'the caller', 'the peer'",
    r"\b(?i:so many)\b": "'this many', or the name of the count",
    r"\bof those that\b": "name them",
    r"`Rounds`": "'BucketReducer'",
    r"\b(a|the|each|every|this|next|last|its|of) rounds?\b(?![ -](trip|robin))": "'step'",
    r"\b(?i:handovers?)\b": "'work'",
    r"\b(?i:pilots?|steering)\b": "'Autotuner'",
    r"\bOffice\b": "'SyncContext'",
    r"\bApart\b|\b(go|goes|going|went) apart\b": "'native all-reduce'",
    r"`Walk`": "'ScheduleRun'",
    r"\b(Division|Placement)\b|`Copies`": "'ParameterViews'",
    r"\b(KeptLosses|LostMeter)\b|`(Losses|Feedback)`": "'EncodingError', 'ErrorFeedback', ...'",
    r"\blost norms?\b": "'relative error'",
    r"`Reach`|\breached parameters?\b|\bparameters? reached\b": "'used parameters'",
    r"\b(?i:roll calls?)\b": "'named barrier'",
    r"\btell_of_buffers\b": "'warn_about_broadcast_buffers'",
    r"`(Form|Admission|Selection)`": "'CandidateRules', 'Candidate', 'Ranking'",
    r"\bNearness\b|\b(CLOSE|CLOSER|SOON|BACK|FEW)\b": "the field of AutoConfig",
    r"\brank 0's cut\b": "'rank 0's bucket assignment'",
    r"\b(slow|fast|idle|busy|shared|network|Ethernet|Gbit|Gbit/s) lines?\b": "'link'",
}
"""Invented words, in any prose and in code spans, with the field's words for them."""
PARAMETERS = {"lent", "own", "kept", "told", "took", "way"}
"""Parameter names that are verbs without an object: name the thing that is passed."""
ERRORS = re.compile(r"\b(wanted|wants|came|is not to be|are not to be)\b")
"""Words that no error has: an error says "expected X, got Y; do Z"."""
FENCE = re.compile(r"^```.*?^```|^<!--.*?-->$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`+[^`]*`+|\$[^$\n]+\$")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
BLOCK = re.compile(r"(?:^[ \t]*//.*\n)+", re.MULTILINE)
BULLET = re.compile(r"\s*(?:[-*]|\d+\.) ")


class Finding(NamedTuple):
    """A sentence or name to correct."""

    line: int
    rule: str
    text: str


class Docstring(NamedTuple):
    """A docstring of a module, class, function, or constant, and the kind that its opening must match."""

    line: int
    text: str
    is_of_function: bool
    is_of_flag: bool


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs and bullets of a Markdown page without code, with their line numbers."""
    text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), page)
    begun: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if begun and (not line.strip() or BULLET.match(line)):
            yield number - len(begun), "\n".join(begun)
            begun = []
        if line.strip():
            begun.append(line)


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph, without code, tables, and headings; links become their texts."""
    text = LINK.sub(r"\1", INLINE.sub("code", paragraph))
    lines = [line for line in text.splitlines() if not line.startswith(("#", "|", "    "))]
    yield from re.split(r"(?<=[.!?:;])[*)\"']*\s+", " ".join(" ".join(lines).split()))


def count_words(sentence: str) -> int:
    """Return the number of words in a sentence without code."""
    return len(re.findall(r"[\w'-]+", sentence))


def docstrings(tree: ast.Module) -> Iterator[Docstring]:
    """Yield every docstring of a module; a constant's docstring is the text after it."""
    for node in ast.walk(tree):
        body = node.body if hasattr(node, "body") and isinstance(node.body, list) else []
        for owner, statement in zip([node, *body], body, strict=False):
            if not is_text(statement):
                continue
            is_function = isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function or isinstance(owner, ast.Module | ast.ClassDef | ast.Assign | ast.AnnAssign):
                text = inspect.cleandoc(statement.value.value)
                yield Docstring(statement.lineno, text, is_function, is_flag(owner))


def is_text(statement: ast.AST) -> bool:
    """Return whether a statement is only a string."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def is_flag(owner: ast.AST) -> bool:
    """Return whether a docstring's owner is a boolean property or attribute."""
    if isinstance(owner, ast.AnnAssign):
        return re.fullmatch(r"(ClassVar\[|Final\[)?bool\]?", ast.unparse(owner.annotation)) is not None
    if isinstance(owner, ast.FunctionDef) and owner.returns is not None:
        names = [ast.unparse(decorator) for decorator in owner.decorator_list]
        return ast.unparse(owner.returns) == "bool" and any(name.endswith("property") for name in names)
    return False


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a Python module, with their line numbers."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def native_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a C++ file that have lines of their own, joined by blocks, with line numbers."""
    for block in BLOCK.finditer(source):
        text = re.sub(r"^[ \t]*// ?", "", block[0], flags=re.MULTILINE)
        yield source.count("\n", 0, block.start()) + 1, text


def texts(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the string literals below a node that are prose, except docstrings."""
    alone = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Expr)}
    for each in ast.walk(node):
        is_prose = isinstance(each, ast.Constant) and isinstance(each.value, str) and " " in each.value
        if is_prose and id(each) not in alone:
            yield each  # type: ignore[misc]


def is_error(node: ast.AST) -> bool:
    """Return whether a node raises or constructs an error."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Raise)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name.endswith("Error")


def excerpt(text: str, found: re.Match[str]) -> str:
    """Return the match with some characters of context on both sides."""
    return repr(text[max(0, found.start() - 20) : found.end() + 20])


def check_phrases(line: int, text: str) -> Iterator[Finding]:
    """Yield the unidiomatic phrases of a text."""
    plain = " ".join(INLINE.sub("code", text).split())
    for phrase, advice in PHRASES.items():
        for found in re.finditer(rf"\b{phrase}", plain, re.IGNORECASE):
            yield Finding(line, "phrase", f"{excerpt(plain, found)}: write {advice}")


def check_words(line: int, text: str) -> Iterator[Finding]:
    """Yield the words of a text for which the field has other words."""
    plain = " ".join(text.split())
    for word, advice in WORDS.items():
        for found in re.finditer(word, plain):
            yield Finding(line, "word", f"{excerpt(plain, found)}: write {advice}")


def check_page(page: str) -> Iterator[Finding]:
    """Yield the findings of a Markdown page."""
    for line, paragraph in paragraphs(page):
        yield from check_phrases(line, paragraph)
        yield from check_words(line, paragraph)
        for sentence in sentences(paragraph):
            if count_words(sentence) > LONGEST:
                text = f"{count_words(sentence)} words ({LONGEST} at most): {sentence[:70]!r}..."
                yield Finding(line, "sentence", text)


def check_docstring(docstring: Docstring) -> Iterator[Finding]:
    """Yield the findings of a docstring: its opening, its first sentence, its phrases and words."""
    line, text = docstring.line, docstring.text
    yield from check_phrases(line, text)
    yield from check_words(line, text)
    for opening, advice in OPENINGS.items():
        if docstring.is_of_function and re.match(opening, text):
            yield Finding(line, "opening", f"{text[:50]!r}: {advice}")
    if HEADLESS.match(text) or re.match("Whether no" if docstring.is_of_flag else "Whether", text):
        yield Finding(line, "headless", f"{text[:50]!r}: begin with a verb, or with the noun that it is")
    first = re.split(r"(?<=[.!?])\s|\n\s*\n", INLINE.sub("code", text))[0]
    if count_words(first) > LONGEST_FIRST:
        text = f"{count_words(first)} words ({LONGEST_FIRST} at most): {text[:50]!r}..."
        yield Finding(line, "first", text)


def check_native(source: str) -> Iterator[Finding]:
    """Yield the findings of a C++ file: the openings, phrases and words of comments on their own lines."""
    for line, text in native_comments(source):
        text = re.sub(r"\brounds?\b", "pass", text)  # the rounds of coders and fuzzers aren't steps
        yield from check_phrases(line, text)
        yield from check_words(line, text)
        if HEADLESS.match(text):
            yield Finding(line, "headless", f"{text[:50]!r}: begin with a verb, or with the noun that it is")


def check_module(source: str) -> Iterator[Finding]:
    """Yield the findings of a Python module: its docstrings, comments, texts, errors, and parameters."""
    tree = ast.parse(source)
    for docstring in docstrings(tree):
        yield from check_docstring(docstring)
    lines = source.splitlines()
    for line, comment in comments(source):
        yield from check_phrases(line, comment)
        yield from check_words(line, comment)
        text = comment.lstrip("# ")
        if FRAGMENT.match(text) and not lines[line - 1].lstrip().startswith("#"):
            yield Finding(line, "fragment", f"{text[:50]!r}: begin with a verb, or with the noun that it is")
    for text in texts(tree):
        yield from check_words(text.lineno, str(text.value))
    in_errors = {id(text): text for node in ast.walk(tree) if is_error(node) for text in texts(node)}
    for text in in_errors.values():
        if found := ERRORS.search(str(text.value)):
            advice = "write 'expected X, got Y; do Z'"
            yield Finding(text.lineno, "error", f"{excerpt(str(text.value), found)}: {advice}")
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in PARAMETERS:
            yield Finding(node.lineno, "parameter", f"{node.arg!r}: name the thing that is passed")


def check_class_names(sources: dict[Path, str]) -> Iterator[tuple[Path, Finding]]:
    """Yield the top-level classes of a package that share their name with another class of the package.

    Integrations are left out, because the modules for the frameworks have the same names.
    """
    homes: dict[str, list[tuple[Path, int]]] = {}
    for path, source in sources.items():
        if path.parent.name == "integrations":
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append((path, node.lineno))
    for name, places in homes.items():
        for path, line in places if len(places) > 1 else []:
            yield path, Finding(line, "class", f"{len(places)} classes are named {name!r}: say what it is of")


def findings() -> list[tuple[Path, Finding]]:
    """Return the findings of all pages and modules, sorted by file and line."""
    pages = [*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [(path, each) for path in pages for each in check_page(path.read_text(encoding="utf-8"))]
    others = (ROOT / room for room in ("bench", "examples", "scripts"))
    for room in [*sorted(ROOT.glob("packages/*/src")), *others]:
        sources = {path: path.read_text(encoding="utf-8") for path in room.rglob("*.py")}
        sources.pop(Path(__file__).resolve(), None)  # this script contains the words that it searches for
        found += [(path, each) for path, source in sources.items() for each in check_module(source)]
        if room.name == "src":
            found += check_class_names(sources)
    for path in (path for room in ROOT.glob("packages/*/native") for path in room.rglob("*")):
        if path.suffix in (".cc", ".h"):
            found += [(path, each) for each in check_native(path.read_text(encoding="utf-8"))]
    return sorted(found)


def main() -> int:
    """Print the findings as ``file:line: rule: text``; return the exit code."""
    found = findings()
    for path, (line, rule, text) in found:
        sys.stderr.write(f"{path.relative_to(ROOT)}:{line}: {rule}: {text}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
