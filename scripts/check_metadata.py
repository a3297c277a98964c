"""Check the metadata of wheels for the package index: links, project URLs, and Python versions.

A relative link or picture in the description leads nowhere on the index, and twine doesn't notice.
"""

from __future__ import annotations

import re
import sys
import zipfile
from email import message_from_bytes
from email.message import Message

URLS = {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
_TARGET = re.compile(r"""\]\(([^)\s]+)|(?:href|src|srcset)="([^"]+)""")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def metadata_of(wheel: str) -> Message:
    """Return a wheel's metadata."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (each for each in files.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_bytes(files.read(name))


def relative_targets(text: str) -> list[str]:
    """Return the targets of links and pictures without a scheme, outside of code; anchors may be relative."""
    targets = [first or second for first, second in _TARGET.findall(_FENCE.sub("", text))]
    return [each for each in targets if not re.match(r"[a-z]+:|#", each)]


def problems(metadata: Message) -> list[str]:
    """Return one sentence for every problem."""
    found = []
    urls = {each.split(",")[0] for each in metadata.get_all("Project-URL", [])}
    if missing := URLS - urls:
        found.append(f"expected project URLs {sorted(URLS)}, got none for {sorted(missing)}")
    description = str(metadata.get_payload(decode=True).decode("utf-8"))  # type: ignore[union-attr]
    if not description.strip():
        found.append("expected a description, got none; name the README in pyproject.toml")
    found += [f"expected an absolute link, got {each}" for each in relative_targets(description)]
    if metadata["Requires-Python"] != ">=3.10":
        found.append(f"expected Requires-Python >=3.10, got {metadata['Requires-Python']}")
    return found


def main(wheels: list[str]) -> int:
    """Print the problems of the wheels; return 1 if there are any."""
    found = [f"{wheel}: {each}" for wheel in wheels for each in problems(metadata_of(wheel))]
    sys.stdout.write("".join(f"{each}\n" for each in found))
    return 1 if found or not wheels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
