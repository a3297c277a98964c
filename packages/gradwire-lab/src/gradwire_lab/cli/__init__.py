"""Commands that the lab adds to ``gradwire``."""

from types import MappingProxyType

COMMANDS = MappingProxyType(
    {
        "demo": (
            "compare gradwire with plain DDP on a 1 Gbit/s network, in a minute",
            "gradwire_lab.cli.demo:run",
        ),
        "train": (
            "train a model with several workers, and compare methods and codecs",
            "gradwire_lab.cli.train:run",
        ),
        "bench": ("measure all-reduces over the network between ranks", "gradwire_lab.cli.bench:run"),
        "testbed": (
            "run a command on hosts with rate-limited links, all on this machine",
            "gradwire_lab.cli.testbed:run",
        ),
        "reproduce": (
            "run the tables and figures of five papers, and judge each",
            "gradwire_lab.cli.reproduce:run",
        ),
        "report": (
            "write the page of a record, or of gradwire reproduce, anew",
            "gradwire_lab.cli.report:run",
        ),
        "experiment": (
            "measure an answer to a question, and keep it as a record",
            "gradwire_lab.cli.experiment:run",
        ),
    }
)
"""Name -> (one line of help, where it runs); the entry point ``gradwire.commands`` names this."""
