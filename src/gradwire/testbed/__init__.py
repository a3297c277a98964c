"""Linux network namespaces with real rate limits, and commands that run in them, without torch.

``Testbed`` creates a ``Topology`` in private namespaces, without changing the machine's own links or limits,
and runs a command on every host of it.
"""

from gradwire.testbed.bed import Testbed
from gradwire.testbed.network.topology import Topology
from gradwire.testbed.run.output import Logs, show
from gradwire.testbed.run.record import Run

__all__ = ["Logs", "Run", "Testbed", "Topology", "show"]
