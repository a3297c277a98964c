"""The smart NIC's model: beside published figures, simulated rings, and steps of a testbed."""

from __future__ import annotations

from gradwire.experiments import smart_nic
from gradwire.experiments.papers.exhibit import Exhibit
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper
from gradwire.experiments.smart_nic.options import PAPER, RING, STEP
from gradwire.experiments.smart_nic.verdict import figure_claims, ring_claims, step_claims

ORIGINS = origins(
    OF_STEPS=paper("section IV.C"),
    OF_CYCLES=chosen("cycles are counted and have no scatter"),
    WITHIN=chosen("a tenth, for what the paper omits of its model; two digits alone would allow 3 %"),
    parts=RUN_TIME,
    rings=RUN_TIME,
    chunk_words=RUN_TIME,
    hosts=chosen("so that the rings of all hosts keep up with their links on one core"),
    rates=chosen("to a core that hosts share what 40 Gbit/s are to the peak of 28 cores (section V.A)"),
    widths=RUN_TIME,
    batches=paper("section V.B"),
    layers=RUN_TIME,
    steps=chosen("a training of one process reaches the goal in them"),
    seeds=chosen("the least that a verdict on a training takes"),
)
FIGURES = Exhibit(
    "smart-nic",
    "figures 2 and 4",
    smart_nic.EXPERIMENT,
    smart_nic.Options(parts=(PAPER,)),
    smart_nic.Options(parts=(PAPER,)),
    figure_claims,
    "modelled, with the paper's equations. Four figures of six nodes set constants that the paper omits; "
    "what follows from those and from other published figures holds by construction, and its erratum says "
    "how. Only the other figures are predicted. For 32 nodes, the paper doesn't say what a ring in software "
    "costs beyond its bytes, so the model has no such cost.",
    (2, 2),
    ORIGINS,
)
RINGS = Exhibit(
    "smart-nic",
    "section IV.C",
    smart_nic.EXPERIMENT,
    smart_nic.Options(parts=(RING,), rings=1, chunk_words=40),
    smart_nic.Options(parts=(RING,)),
    ring_claims,
    "the gateware's ring is simulated cycle by cycle, with chunks of 160 words of 256 bits, and compared "
    "with T_AR, the largest of T_ring, T_add, and T_mem; a circuit's latency comes from a ring of two "
    "engines.",
    (4, 80),
    ORIGINS,
)
MODEL = Exhibit(
    "smart-nic",
    "section V.B",
    smart_nic.EXPERIMENT,
    smart_nic.Options(
        parts=(STEP,),
        hosts=(2, 3),
        rates=("200mbit",),
        widths=(256,),
        batches=(448,),
        layers=3,
        steps=30,
        seeds=1,
    ),
    smart_nic.Options(parts=(STEP,)),
    step_claims,
    "six layers of 256 x 256 weights (20 of 2048 x 2048 are published) learn MNIST if GRADWIRE_DATA has it, "
    "else scikit-learn's digits, on two to four hosts (six) at 200 Mbit/s. Workers compute for real, all on "
    "one core. A ring in software on another core plays the smart NICs; without them, it shares the workers' "
    "core. gradwire nic has no part in it: it encodes each value by itself, and BFP shares an exponent. The "
    "model is calibrated on two hosts, one rate, one width, and one batch, without BFP, and predicts all "
    "that differs.",
    (26, 600),
    ORIGINS,
)
