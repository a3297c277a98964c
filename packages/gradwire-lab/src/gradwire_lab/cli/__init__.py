"""Commands that the lab adds to ``gradwire``."""

from types import MappingProxyType

_HELP = {
    "demo": "compare gradwire with plain DDP at 1 Gbit/s, in four minutes",
    "train": "train a model with several workers, and compare methods and codecs",
    "bench": "measure all-reduces over the network between ranks",
    "testbed": "run a command on hosts with rate-limited links on this machine",
    "reproduce": "measure five papers' tables and figures, with verdicts",
    "report": "write a record, or a folder of records, as HTML",
    "experiment": "run an experiment and keep its results as a record",
}
COMMANDS = MappingProxyType({name: (words, f"gradwire_lab.cli.{name}:run") for name, words in _HELP.items()})
"""The help line and the function of each command, for the entry point ``gradwire.commands``."""
