"""Parameters that join while a method trains: all ranks take in the same ones, with the same weights."""

from __future__ import annotations

from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError
from gradwire.exchange import Exchange
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.methods.trained import Trained
from gradwire.training.replicas.broadcast import broadcast_parameters, count_weights
from gradwire.training.replicas.compare import differing


def welcome(trained: Trained, exchange: Exchange, ledger: Ledger | None) -> ExchangeCost:
    """Let ``trained`` grow by all that ask for a gradient; they begin with rank 0's weights.

    All ranks call it before the same step, while no other exchange of the link is under way. Raises
    ``ExchangeError``, also where they do not train the same parameters.
    """
    newcomers = trained.grow()
    try:
        different = differing(trained.layout(), exchange)
    except ExchangeError as error:  # another rank may be at something else
        own = exchange.link.name_of(exchange.link.rank)
        raise ExchangeError(
            f"{own}: {len(newcomers)} parameters were unfrozen here, but "
            f"comparing them with the other ranks' failed ({error}); unfreeze the same ones on all ranks, "
            "before the same step"
        ) from error
    if different is not None:
        raise ExchangeError(
            f"rank {exchange.link.rank}: all ranks train the same parameters, but those of {different}; "
            "unfreeze the same ones on all ranks, before the same step"
        )
    if not newcomers:
        return ExchangeCost()
    accounting = broadcast_parameters(newcomers, exchange)
    count_weights(ledger, accounting)
    return accounting
