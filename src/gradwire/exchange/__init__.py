"""Walking a schedule over a link with a codec: the one place where the three meet."""

from gradwire.exchange.accounting import Accounting
from gradwire.exchange.exchange import Exchange

__all__ = ["Accounting", "Exchange"]
