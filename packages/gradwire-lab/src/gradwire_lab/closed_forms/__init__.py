"""The papers' closed forms: equations for exchanges, steps, and networks, and the smart NIC's model."""

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from gradwire_lab.closed_forms.network import Groups, Network

__all__ = ["AlphaBetaGamma", "Groups", "Network"]
