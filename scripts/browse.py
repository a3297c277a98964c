"""Open HTML pages in a real browser: screenshots at the widths of a desktop and a phone, and faults.

    .venv/bin/python scripts/browse.py build/docs --out build/browse
    .venv/bin/python scripts/browse.py report.html --schemes light --height 4000

Pages are files; a folder means every HTML file in it. Each page is opened at every width and colour scheme.
Folded parts are opened after the first screenshot, and then a second screenshot is taken. Faults are the
findings of axe-core (the rules of WCAG A and AA, and its best practices), a page wider than the window, an
error on the console, and a request to another host. The exit code is 1 if there are faults, and 2 if the
browser is missing.

Pages are served from this machine, because a browser treats every file as a separate site. The browser is the
system's Chromium, because Playwright would download a browser from another host.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NEEDS = (
    "browse: {missing} is missing; install the browser with 'apt-get install chromium' (or set "
    "$CHROMIUM), and its driver with '.venv/bin/pip install --group browser -c constraints.txt'\n"
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
HEIGHT_OF_WINDOW = 900
MISSING, WRONG = 2, 1
OPEN = """() => {
  const folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((each) => { each.open = true; });
  return folded.length;
}"""
"""JavaScript that opens all folded parts, and returns their number."""


def browser_path() -> str | None:
    """Return the path of the system's Chromium, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def pages_of(paths: list[Path]) -> list[Path]:
    """Return the HTML files of the paths, sorted within each folder."""
    found = [sorted(path.rglob("*.html")) if path.is_dir() else [path] for path in paths]
    return [page.resolve() for each in found for page in each]


def complaints(page: Any, axe: Any) -> Iterator[str]:
    """Yield the faults of the open page."""
    wide, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    if wide > window:
        yield f"is {wide} pixels wide in a window of {window}"
    for rule in axe.run(page).response["violations"]:
        for node in rule["nodes"]:
            (place, *_), html = node["target"], " ".join(node["html"].split())[:100]
            yield f"{rule['id']} ({rule['impact']}): {rule['help']}: {place}: {html}"


class Quiet(SimpleHTTPRequestHandler):
    """A file server that prints nothing and answers requests for icons, which browsers always send."""

    def send_error(self, code: int, *words: str | None) -> None:
        """Send an empty response for an icon, and errors for all other files."""
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            super().send_error(code, *words)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder inside the context; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def browse(words: argparse.Namespace) -> int:
    """Open every page in every view, print its faults, and return the exit code."""
    from playwright.sync_api import sync_playwright

    pages = pages_of(words.pages)
    folder = Path(os.path.commonpath([page.parent for page in pages]))
    names = [page.relative_to(folder) for page in pages]
    kinds = Counter[str]()
    with sync_playwright() as playwright, served(folder) as address:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        for scheme in words.schemes:
            for width in words.widths:
                size = {"width": width, "height": HEIGHT_OF_WINDOW}
                tab = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
                for name, text in look(tab, address, names, words, f"{width}-{scheme}"):
                    kinds[text.split(":")[0]] += 1
                    sys.stdout.write(f"{name} at {width}, {scheme}: {text}\n")
                tab.close()
        browser.close()
    ways = len(words.widths) * len(words.schemes)
    sys.stdout.write(
        f"{len(pages)} pages, each in {ways} ways: {kinds.total()} complaints {dict(kinds) or ''}\n"
    )
    return WRONG if kinds else 0


def look(
    tab: Any, address: str, names: list[Path], words: argparse.Namespace, view: str
) -> Iterator[tuple[Path, str]]:
    """Open pages in a tab one after another; yield each page's name with its faults."""
    from axe_playwright_python.sync_playwright import Axe

    axe, seen = Axe(), list[str]()
    tab.on("console", lambda message: seen.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: seen.append(str(error)))
    tab.on(
        "request", lambda asked: seen.append(f"asks for {asked.url}") if outside(asked.url, address) else None
    )
    for name in names:
        seen.clear()
        tab.goto(address + name.as_posix())
        file = "-".join(name.with_suffix("").parts)
        if words.out is not None:
            picture(tab, words.out / f"{file}-{view}.png", words.height)
        if tab.evaluate(OPEN) and words.out is not None:
            picture(tab, words.out / f"{file}-{view}-open.png", words.height)
        for text in [*complaints(tab, axe), *seen]:
            yield name, text


def outside(url: str, address: str) -> bool:
    """Return whether a URL leads to another machine."""
    return not url.startswith((address, "data:", "blob:", "about:"))


def picture(tab: Any, file: Path, height: int) -> None:
    """Save a screenshot of the top of a page."""
    file.parent.mkdir(parents=True, exist_ok=True)
    tall = tab.evaluate("document.documentElement.scrollHeight")
    size = tab.viewport_size
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(tall, height)}
    tab.screenshot(path=file, full_page=True, clip=clip)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the parsed options."""
    parser = argparse.ArgumentParser("browse.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path, help="HTML files, and folders of them")
    parser.add_argument("--out", type=Path, help="folder of screenshots (default: none are taken)")
    parser.add_argument(
        "--widths", default="1280,390", help="widths of the window in pixels (default: %(default)s)"
    )
    parser.add_argument("--schemes", default="light,dark", help="colour schemes (default: %(default)s)")
    parser.add_argument(
        "--height",
        type=int,
        default=2400,
        help="largest height of screenshots in pixels (default: %(default)s)",
    )
    words = parser.parse_args(arguments)
    words.widths = [int(width) for width in words.widths.split(",")]
    words.schemes = words.schemes.split(",")
    for page in words.pages:
        if not page.exists():
            parser.error(f"{page} doesn't exist; build it first ('make docs' builds build/docs)")
    return words


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    words = parsed(arguments)
    try:
        import axe_playwright_python
        import playwright  # noqa: F401
    except ImportError as error:
        sys.stderr.write(NEEDS.format(missing=f"the Python package {error.name}"))
        return MISSING
    del axe_playwright_python
    if browser_path() is None:
        sys.stderr.write(NEEDS.format(missing="Chromium"))
        return MISSING
    return browse(words)


if __name__ == "__main__":
    sys.exit(main())
