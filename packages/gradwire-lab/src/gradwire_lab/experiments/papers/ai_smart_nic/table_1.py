"""Table I: the logic, memories, and DSPs of the all-reduce and block floating point in the NIC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradwire.deferred import torch
from gradwire_lab.experiments.claim import RATIO, Basis, Claim, Explanation, Published, at_most, near, only
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, each, exhibit, paper, row_of

PLACE = "table I"
ALM, M20K, DSP = "ALM", "M20K", "DSP"
Resources = Mapping[str, float]
SHIM: Resources = {ALM: 64480, M20K: 368, DSP: 0}
ALL_REDUCE: Resources = {ALM: 2233, M20K: 46, DSP: 8}
BFP: Resources = {ALM: 2857, M20K: 120, DSP: 0}
TOTAL: Resources = {ALM: 69570, M20K: 534, DSP: 8}
CHIP: Resources = {ALM: 427200, M20K: 2713, DSP: 1518}
"""The resources of the Arria 10 GX 1150, from its data sheet, with which the table's shares agree."""
ADDED: Resources = {ALM: 0.012, M20K: 0.061, DSP: 0.005}
"""The shares of the chip that the all-reduce and BFP use together, published in section V.A."""
COMPRESSION, BLOCK = 3.8, 16
ROUNDED, ROUNDED_RATIO = 0.1, 0.015
WITHIN = 0.25
LANES = 8
TABLE = "published"
"""The value of ``block`` in the cell with the table's own figures."""
ADDER, RING, COMPRESSOR, DECOMPRESSOR = "float-adder", "ring-engine", "bfp-compressor", "bfp-decompressor"
CODECS = {RING: "identity", COMPRESSOR: "bfp:7x16", DECOMPRESSOR: "bfp:7x16", ADDER: None}
KEPT: Mapping[str, Resources] = {
    RING: {"ALUT": 8841, "FF": 5638, "M10K": 46, "DSP": 0},
    COMPRESSOR: {"ALUT": 2249, "FF": 1827, "M10K": 0, "DSP": 0},
    DECOMPRESSOR: {"ALUT": 2361, "FF": 825, "M10K": 0, "DSP": 0},
    ADDER: {"ALUT": 668, "FF": 613, "M10K": 0, "DSP": 0},
}
"""The resources by ``gradwire gateware report --targets intel`` with Yosys 0.70, for words of 256 bits."""
IN_LOGIC = (
    "adders here are logic, with subnormals, so that they fit every chip; an Arria 10 has an adder in each "
    "of its DSPs. Without the adders, the ring takes less logic than published."
)
NO_DSP = "the eight adders here are logic; the published adders are DSPs, one for each of the eight lanes."
MEMORIES = "the memories here hold chunks of 512 words; the paper doesn't state the size of its chunks."
NO_MEMORY = "the words of a block wait in registers here, and in memories in the published circuit."


@dataclass(frozen=True)
class SmartNicTable1Options:
    """The option to synthesize instead of using the stored resources; synthesis takes minutes."""

    synthesises: bool = False


def cells(_options: SmartNicTable1Options) -> list[Cell]:
    """Return a cell for the table's own figures, and a cell for each block."""
    blocks = [{"block": block, "codec": codec} for block, codec in CODECS.items()]
    return [{"block": TABLE, "codec": None}, *blocks]


def measure(options: SmartNicTable1Options, cell: Cell) -> Mapping[str, Any]:
    """Return the resources of a block in a Cyclone V, and their counterparts in an Arria 10."""
    from gradwire.codecs import parse
    from gradwire_gateware import synthesis as report

    if cell["block"] == TABLE:
        added = {name: ALL_REDUCE[name] + BFP[name] for name in CHIP}
        shares = {f"{name} share": count / CHIP[name] for name, count in added.items()}
        payload = parse(CODECS[COMPRESSOR] or "").encode(torch.linspace(-1.0, 1.0, BLOCK))
        sums = {name: SHIM[name] + count for name, count in added.items()}
        return {**sums, **shares, "ratio": 4 * BLOCK / len(payload)}
    found: Mapping[str, float] = KEPT[cell["block"]]
    if options.synthesises:
        (row,) = report.measure([report.Cell(cell["block"], cell["codec"], 256, "intel")])
        found = row["resources"]
    return {"resources": dict(found), ALM: found["ALUT"] / 2, M20K: found["M10K"] / 2, DSP: found["DSP"]}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the blocks' resources with the table, and the table with its chip."""
    ring, adder, table = (row_of(rows, block=block) for block in (RING, ADDER, TABLE))
    both = [row_of(rows, block=block) for block in (COMPRESSOR, DECOMPRESSOR)]
    modelled, summed = partial(Claim, basis=Basis.MODELLED), partial(Claim, basis=Basis.ARITHMETIC)
    reasons = {
        ALM: Explanation(IN_LOGIC, at_most(ALL_REDUCE[ALM] + LANES * adder[ALM])),
        M20K: Explanation(MEMORIES, at_most(ALL_REDUCE[M20K])),
        DSP: Explanation(NO_DSP, near(0.0, 0.0)),
    }
    found = [
        modelled(
            "all-reduce: DSPs, one for each lane's adder" if name == DSP else f"all-reduce: {name}s",
            only(ring[name]),
            near(ALL_REDUCE[name], 0.0 if name == DSP else WITHIN),
            unit=name,
            published=Published(PLACE, ALL_REDUCE[name]),
            otherwise=reason,
        )
        for name, reason in reasons.items()
    ]
    found += [
        modelled(
            f"BFP: {name}s",
            only(sum(row[name] for row in both)),
            near(count, WITHIN),
            unit=name,
            published=Published(PLACE, count),
            otherwise=Explanation(NO_MEMORY, near(0.0, 0.0)) if name == M20K else None,
        )
        for name, count in BFP.items()
    ]
    for name, count in TOTAL.items():
        published = Published(PLACE, count)
        text = f"sum of the table's {name}s"
        found.append(summed(text, only(table[name]), near(count, 0.0), unit=name, published=published))
    for name, share in ADDED.items():
        published = Published("section V.A", share)
        text = f"all-reduce and BFP: share of the chip's {name}s"
        found.append(summed(text, only(table[f"{name} share"]), near(share, ROUNDED), published=published))
    ratio = summed(
        "BFP: bytes of a block of 16 floats, over those of its payload",
        only(table["ratio"]),
        near(COMPRESSION, ROUNDED_RATIO),
        unit=RATIO,
        published=Published("section IV.B", COMPRESSION, "512 bits over 136 are 3.76x."),
    )
    return [*found, ratio]


EXHIBIT = exhibit(
    "smart-nic",
    PLACE,
    "what resources do the all-reduce and block floating point take in the NIC?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=SmartNicTable1Options(),
    full=SmartNicTable1Options(synthesises=True),
    scaling="modelled: Yosys has no Arria 10, so a Cyclone V replaces it. Two ALUTs count as one ALM, and "
    "two M10Ks as one M20K. The memories for chunks have 512 words of 256 bits; the paper doesn't state "
    "their size. Without --full, the figures are from gradwire gateware report with Yosys 0.70. The "
    "interfaces to the host and the network (OPAE and IKL) have no counterpart here, nor do the shares at "
    "400 Gbit/s, because the paper doesn't name the chip.",
    origins={
        "SHIM ALL_REDUCE BFP TOTAL": paper("table I"),
        "CHIP": chosen("the chip's data sheet"),
        "ADDED": paper("section V.A"),
        "COMPRESSION BLOCK": paper("section IV.B"),
        "WITHIN": chosen("a Cyclone V and Yosys, not an Arria 10 and Quartus"),
        "ROUNDED": chosen("published shares have two digits"),
        "ROUNDED_RATIO": chosen("the published ratio has two digits"),
        "LANES": paper("section IV"),
        "KEPT": chosen("synthesised by gradwire gateware report"),
        "synthesises": RUN_TIME,
    },
    seconds=(1, 240),
)
