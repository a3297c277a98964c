"""Requests for buckets whose parameters have names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.exchange.views import views_of


def request_of(
    exchange: Exchange, names: Sequence[str], counts: Sequence[int], **fields: Any
) -> BucketRequest:
    """Return the request of a bucket of these parameters, with the codecs of the plan."""
    return BucketRequest(views=views_of(exchange.plan, exchange.link.world, names, counts), **fields)
