"""Linux network namespaces with real rate limits, and commands that run in them, without torch."""

from gradwire_lab.testbed.bed import Testbed
from gradwire_lab.testbed.output import CommandRun, Logs, show
from gradwire_lab.testbed.topology import Topology

__all__ = ["CommandRun", "Logs", "Testbed", "Topology", "show"]
