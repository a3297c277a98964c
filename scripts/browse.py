"""Open HTML pages in a real browser: pictures at the widths of a desktop and a phone, and what is wrong.

    .venv/bin/python scripts/browse.py build/docs --out build/browse
    .venv/bin/python scripts/browse.py report.html --schemes light --height 4000

Pages are files; a folder stands for every HTML file in it. Each page is opened at every width and colour
scheme. Wrong is what axe-core finds (the rules of WCAG A and AA, and its best practices), a page that is
wider than the window, an error on the console, and a request to another host. The exit code is 1 if something
is wrong, 2 if the browser is missing.

Pages come from a server on this machine, because to a browser every file is a site of its own. The browser is
the system's Chromium, because the one that Playwright downloads comes from a host of its own.
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
    "browse: {missing} is missing; install the browser with 'apt-get install chromium' (or name one with "
    "$CHROMIUM), and what drives it with '.venv/bin/pip install --group browser -c constraints.txt'\n"
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
HEIGHT_OF_WINDOW = 900
MISSING, WRONG = 2, 1


def browser_path() -> str | None:
    """Return the program of the system's Chromium, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def pages_of(paths: list[Path]) -> list[Path]:
    """Return the HTML files that paths name, in order."""
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
    """A server of files that prints nothing, and has an icon for every page: browsers ask for one."""

    def send_error(self, code: int, *words: str | None) -> None:
        """Answer that there is nothing to send, where a browser wants an icon."""
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            super().send_error(code, *words)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder while the block runs; yield its address."""
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
    """Open pages in a tab, one after the other; yield the name of each with its faults."""
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
        if words.out is not None:
            file = "-".join(name.with_suffix("").parts)
            picture(tab, words.out / f"{file}-{view}.png", words.height)
        for text in [*complaints(tab, axe), *seen]:
            yield name, text


def outside(url: str, address: str) -> bool:
    """Return whether a URL leads to another machine."""
    return not url.startswith((address, "data:", "blob:", "about:"))


def picture(tab: Any, file: Path, height: int) -> None:
    """Save the top of a page as a picture."""
    file.parent.mkdir(parents=True, exist_ok=True)
    tall = tab.evaluate("document.documentElement.scrollHeight")
    size = tab.viewport_size
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(tall, height)}
    tab.screenshot(path=file, full_page=True, clip=clip)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser("browse.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path, help="HTML files, and folders of them")
    parser.add_argument("--out", type=Path, help="a folder for pictures (default: none are taken)")
    parser.add_argument(
        "--widths", default="1280,390", help="of the window, in pixels (default: %(default)s)"
    )
    parser.add_argument("--schemes", default="light,dark", help="of colours (default: %(default)s)")
    parser.add_argument(
        "--height", type=int, default=2400, help="of pictures, in pixels (default: %(default)s)"
    )
    words = parser.parse_args(arguments)
    words.widths = [int(width) for width in words.widths.split(",")]
    words.schemes = words.schemes.split(",")
    for page in words.pages:
        if not page.exists():
            parser.error(f"{page} doesn't exist; build it first ('make docs' builds build/docs)")
    return words


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code."""
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
