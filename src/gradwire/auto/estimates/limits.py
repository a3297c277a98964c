"""What limits a step: computation, the line, or the processor, with what its exchange does there."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.planner.search.predict import Prediction
from gradwire.timing.replay.line import Line


@dataclass(frozen=True)
class Limit:
    """``"computation"``, ``"line"`` or ``"CPU"`` (codecs and frames), and its share of the step."""

    name: str
    share: float

    def __str__(self) -> str:
        return f"{self.name} {100 * self.share:.0f} %"


def limit_of(chosen: Prediction, line: Line, gather_s: float, ranks_per_machine: int) -> Limit:
    """Return what takes most of a step, of which FSDP's weights take ``gather_s`` more seconds.

    What is exposed of an exchange has the parts of the whole exchange. Where ranks share a machine, the
    exchange also waits for cores, so no more counts for the line than the wire takes for the bytes.
    """
    cost = chosen.cost
    line_s = cost.wait_s
    if ranks_per_machine > 1:
        line_s = min(line_s, cost.wire_nbytes / line.nbytes_per_s)
    share = line_s / cost.total_s if cost.total_s else 0.0
    parts = {
        "computation": chosen.compute_s,
        "line": share * chosen.exposed_s + gather_s,
        "CPU": (1 - share) * chosen.exposed_s,
    }
    name = max(parts, key=parts.__getitem__)
    total_s = sum(parts.values())
    return Limit(name, parts[name] / total_s if total_s else 1.0)
