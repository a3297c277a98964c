"""What is asked of an exchange for one bucket."""

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
    """A whole all-reduce, or one of its halves; errors name the value."""

    ALL_REDUCE = "schedule"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """The exchange of one bucket: all ranks make the same one, but for residual and norms.

    Attributes
    ----------
    half
        Which half; both by default. ``REDUCE`` leaves the sum at rank 0 with ``star``, and every chunk at its
        owner with ``ring``. Elsewhere the bucket holds partial sums then. ``BROADCAST`` begins there.
    average
        Whether an all-reduce divides the sum by the number of ranks; halves never do.
    codec
        Encodes the bucket; the plan's by default. It is not used where ``views`` have codecs.
    views
        The bucket's parameters with their codecs; None if the bucket has one codec and no zeros between them.
    residual
        Error feedback (Seide et al., Interspeech 2014): this rank's own, of the same length, in memory of
        its own. It is added to the bucket before anything is sent. Then it holds what this rank's encodings
        lost, in any hop: the sum plus all ranks' residuals is the exact sum of the buckets and the old
        residuals, within float rounding. If the sum is not finite, it stays as it was on all ranks, and so it
        does after a failure. A rank keeps the old one of a reduce whose bucket is not finite, which others
        may not see. The owner of a ``Residual`` gives the memory for what is lost, too.
    norms
        Gets, by ranges of the bucket, the sums of squares of this rank's own values, and of what its
        encodings lost in any hop. It costs a decoding of what is encoded without a residual, and nothing
        beside one. With ``views``, its ranges are the parameters.
    timeout_s
        How long nothing may move, on any rank, before that is an error; the link's timeout by default.
    """

    half: Half = Half.ALL_REDUCE
    average: bool = True
    codec: Codec | None = None
    views: ParameterViews | None = None
    residual: torch.Tensor | Residual | None = None
    norms: Norms | None = None
    timeout_s: float | None = None


Reducer = Callable[[torch.Tensor, BucketRequest], ExchangeCost]
"""``Exchange.run``, or what does more for a bucket around a call of it."""
