"""The exchange of a bucket: a collective's schedule, run over a link with a codec."""

from gradwire.exchange.exchange import Exchange
from gradwire.exchange.norms import Norms

__all__ = ["Exchange", "Norms"]
