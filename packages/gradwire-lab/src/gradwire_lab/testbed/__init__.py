"""Linux network namespaces with real rate limits, and commands that run in them, without torch.

``Testbed`` creates a ``Topology`` in private namespaces, and runs a command on every host of the topology.
The machine's own links and limits don't change.
"""

from gradwire_lab.testbed.bed import Testbed
from gradwire_lab.testbed.output import CommandRun, Logs, show
from gradwire_lab.testbed.topology import Topology

__all__ = ["CommandRun", "Logs", "Testbed", "Topology", "show"]
