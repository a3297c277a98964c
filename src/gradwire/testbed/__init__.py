"""Real Linux network namespaces with rate limits, and commands run in them; torch is not needed here.

``Testbed`` makes a ``Topology`` in a private area of the machine, where neither links nor limits of the
machine itself are touched, and runs a command on every host of it.
"""

from gradwire.testbed.bed import Testbed
from gradwire.testbed.network.topology import Topology
from gradwire.testbed.run.output import Logs, show
from gradwire.testbed.run.record import Run

__all__ = ["Logs", "Run", "Testbed", "Topology", "show"]
