"""Predict and measure the cost of an exchange: formulas, a walk over the steps, and simulations."""

from gradwire.timing.formulas import AlphaBetaGamma
from gradwire.timing.network import Groups, Network

__all__ = ["AlphaBetaGamma", "Groups", "Network"]
