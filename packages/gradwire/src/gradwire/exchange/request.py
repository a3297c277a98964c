"""The request for the exchange of one bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from gradwire.codecs import Codec
from gradwire.costs import ExchangeCost
from gradwire.exchange.feedback import Residual
from gradwire.exchange.norms import Norms
from gradwire.exchange.views import ParameterViews


class Half(Enum):
    """A whole all-reduce, or one of its halves. The value is the name of the ``Collective`` method."""

    ALL_REDUCE = "schedule"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """The request for one bucket's exchange, equal on all ranks except for ``residual`` and ``norms``.

    Attributes
    ----------
    half
        The half of the all-reduce; both halves by default. After ``REDUCE``, rank 0 has the sum with
        ``star``, and every owner has its chunk's sum with ``ring``. All other values are partial sums.
        ``BROADCAST`` starts at the owners.
    average
        Whether an all-reduce divides the sum by the number of ranks; a half never does.
    codec
        The bucket's codec; the plan's by default. Ignored with ``views``, which have their own codecs.
    views
        The bucket's parameters with their codecs; None if the bucket has one codec and no padding.
    residual
        Error feedback (Seide et al., Interspeech 2014): this rank's residual, of the bucket's length, in
        separate memory. It is added to the bucket before anything is sent, and then replaced with this rank's
        encoding error over all hops. The sum plus all ranks' residuals is the exact sum of the buckets and
        the old residuals, within float rounding. All ranks keep the old residual if the sum is non-finite,
        and after a failure. In a reduce, only ranks with a non-finite bucket keep their residuals. A
        ``Residual`` also provides the memory for the error.
    norms
        The object that receives sums of squares for each range of the bucket: of this rank's own values, and
        of this rank's encoding errors over all hops. Without a residual, measuring costs one decoding of each
        payload; with a residual, nothing. With ``views``, the ranges are the parameters.
    timeout_s
        The time without progress on any rank after which the exchange fails; the link's by default.
    """

    half: Half = Half.ALL_REDUCE
    average: bool = True
    codec: Codec | None = None
    views: ParameterViews | None = None
    residual: torch.Tensor | Residual | None = None
    norms: Norms | None = None
    timeout_s: float | None = None


Reducer = Callable[[torch.Tensor, BucketRequest], ExchangeCost]
"""The type of ``Exchange.run``, and of functions that wrap it."""
