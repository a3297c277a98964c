"""Fail if a file has more than 400 lines, too many for one idea; the median should be near 100."""

import statistics
import sys
from pathlib import Path

LONGEST = 400
ROOT = Path(__file__).parent.parent
SUFFIXES = {".py", ".cc", ".h"}


def main() -> int:
    """Print the files that are too long; return the exit code."""
    lengths = {
        path: path.read_text(encoding="utf-8").count("\n")
        for room in ("packages", "tests", "bench", "examples", "scripts")
        for path in sorted((ROOT / room).rglob("*"))
        if path.suffix in SUFFIXES
    }
    too_long = {path: count for path, count in lengths.items() if count > LONGEST}
    for path, count in too_long.items():
        sys.stderr.write(
            f"{path.relative_to(ROOT)}: {count} lines; split it by its ideas ({LONGEST} at most)\n"
        )
    sys.stdout.write(f"{len(lengths)} files, median {statistics.median(lengths.values()):.0f} lines\n")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
