"""Commands that the lab adds to ``gradwire``."""

from types import MappingProxyType

COMMANDS = MappingProxyType(
    {
        "demo": ("compare gradwire with plain DDP at 1 Gbit/s, in four minutes", "gradwire_lab.cli.demo:run"),
        "train": (
            "train a model with several workers, and compare methods and codecs",
            "gradwire_lab.cli.train:run",
        ),
        "bench": ("measure all-reduces over the network between ranks", "gradwire_lab.cli.bench:run"),
        "testbed": (
            "run a command on hosts with rate-limited links on this machine",
            "gradwire_lab.cli.testbed:run",
        ),
        "reproduce": (
            "measure five papers' tables and figures, with verdicts",
            "gradwire_lab.cli.reproduce:run",
        ),
        "report": ("write a record, or a folder of records, as HTML", "gradwire_lab.cli.report:run"),
        "experiment": (
            "run an experiment and keep its results as a record",
            "gradwire_lab.cli.experiment:run",
        ),
    }
)
"""The help line and the function of each command, for the entry point ``gradwire.commands``."""
