"""Predict and measure the cost of an exchange: formulas, a walk over the steps, and simulations."""

from gradwire.timing.closed_form.formulas import AlphaBetaGamma
from gradwire.timing.schedule_model.network import Groups, Network

__all__ = ["AlphaBetaGamma", "Groups", "Network"]
