"""Print the line and branch coverage of each room; fail if a room is below 90 %.

The argument is a file written by ``coverage json``; ``make coverage`` runs both.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

LEAST = 90.0


def main(path: str) -> int:
    """Print the table; return the exit code."""
    rooms: dict[str, list[tuple[int, int]]] = defaultdict(list)
    weak = []
    for name, found in json.loads(Path(path).read_text(encoding="utf-8"))["files"].items():
        package, *inside = re.split(r"(?:^|/)(gradwire(?:_\w+)?)/", name)[-2:]
        room, *inside = (
            inside[0].removesuffix(".py").split("/") if package == "gradwire" else (package, *inside)
        )
        summary = found["summary"]
        there = summary["num_statements"] + summary["num_branches"]
        run = summary["covered_lines"] + summary["covered_branches"]
        rooms[room].append((run, there))
        if inside and there and 100 * run / there < LEAST:
            weak.append(f"{name}: {100 * run / there:.1f} %, lines {found['missing_lines']} did not run\n")
    rows = {
        room: (sum(run for run, _ in files), sum(all_ for _, all_ in files)) for room, files in rooms.items()
    }
    rows["all"] = (sum(run for run, _ in rows.values()), sum(there for _, there in rows.values()))
    shares = {room: 100 * run / there for room, (run, there) in rows.items() if there}
    for room, share in shares.items():
        sys.stdout.write(f"{room:<12} {share:6.1f} % of {rows[room][1]} lines and branches\n")
    sys.stdout.writelines(weak)
    return 1 if min(shares.values()) < LEAST else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
