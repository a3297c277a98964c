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
    """A whole all-reduce, or one of its halves; the value is the name of an algorithm's steps for it."""

    ALL_REDUCE = "schedule"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """The request for one bucket, the same on all ranks but for residual and norms.

    Attributes
    ----------
    half
        The half; both by default. ``REDUCE`` leaves the sum at rank 0 with ``star``, and every chunk at its
        owner with ``ring``; elsewhere the bucket holds partial sums. ``BROADCAST`` begins there.
    average
        Whether an all-reduce divides the sum by the number of ranks; halves never do.
    codec
        Encodes the bucket; the plan's by default. It is not used if ``views`` have codecs.
    views
        The bucket's parameters with their codecs; None if the bucket has one codec and no zeros between them.
    residual
        Error feedback (Seide et al., Interspeech 2014): this rank's own, of the same length, in memory of
        its own. It is added to the bucket before anything is sent, and then replaced by the encoding error of
        this rank, over all hops. The sum plus all ranks' residuals is the exact sum of the buckets and the
        old residuals, within float rounding. All ranks keep the old one if the sum is not finite, and after a
        failure. In a reduce, a rank whose bucket is not finite keeps it, which others may not see. The owner
        of a ``Residual`` also gives the memory for the error.
    norms
        Gets the sums of squares, by ranges of the bucket, of this rank's own values and of its encoding
        errors over all hops. It costs a decoding of each payload without a residual, and nothing beside one.
        With ``views``, its ranges are the parameters.
    timeout_s
        The time without movement on any rank after which the exchange fails; the link's by default.
    """

    half: Half = Half.ALL_REDUCE
    average: bool = True
    codec: Codec | None = None
    views: ParameterViews | None = None
    residual: torch.Tensor | Residual | None = None
    norms: Norms | None = None
    timeout_s: float | None = None


Reducer = Callable[[torch.Tensor, BucketRequest], ExchangeCost]
"""``Exchange.run``, or a function that does more for a bucket around a call of it."""
