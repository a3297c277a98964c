"""Walking a schedule over a link with a codec: the one place where the three meet."""

from gradwire.exchange.exchange import Exchange
from gradwire.exchange.norms import Norms

__all__ = ["Exchange", "Norms"]
