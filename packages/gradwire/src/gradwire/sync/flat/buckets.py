"""The buckets of a flat gradient, passed to ``GradientSync`` in order, and the used parameters of a step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import nullcontext

import torch

from gradwire.costs import ExchangeCost
from gradwire.devices import device_of
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest, Half
from gradwire.plan import Plan
from gradwire.sync.bucket.error_feedback import FlatResidual
from gradwire.sync.bucket.observe import BucketObserver
from gradwire.sync.bucket.residual import GRADIENT, Residuals, write
from gradwire.sync.bucket.work import BucketWork, GradientBucket
from gradwire.sync.flat.gradients import Bucket, FlatGradients, cut
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.layout import Layout
from gradwire.sync.ledger.sinks import profiled
from gradwire.sync.thread import Work

WHOLE = "gradient"  # the ledger's name for a gradient that is exchanged as one bucket


class UsedParameters:
    """The used and unused parameters of one step, created after backward, by their numbers.

    ``unused`` are the parameters that this rank has not used; by default, those without a gradient.
    ``absent`` are the parameters that no rank has used, known from a checkpoint or once the ranks agree.

    The rule is that of DDP with ``find_unused_parameters``. If some ranks use a parameter, the other ranks'
    gradients count as 0 in its average. If no rank uses it, it has no gradient, so no optimizer changes it.

    The ranks need no exchange for this in most steps. Every codec decodes zeros to zeros, so the average of a
    parameter that no rank has used is 0. Averages have the same bits on all ranks, so all ranks see the same
    candidates: the parameters with an average of 0. If there are any, they exchange one number for each of
    them.
    """

    def __init__(
        self, gradients: FlatGradients, unused: Iterable[int] | None = None, absent: Iterable[int] = ()
    ) -> None:
        self._gradients = gradients
        self.unused = frozenset(gradients.unused() if unused is None else unused)
        self.absent = frozenset(absent)

    def agree(self, exchange: Exchange) -> ExchangeCost:
        """Set ``absent`` by an exchange, once the whole gradient is averaged, and return the cost.

        All ranks call this between the same two exchanges. Raises ``ExchangeError``.
        """
        candidates = self._gradients.all_zero()
        if not candidates:
            return ExchangeCost()
        users = self.flags(candidates)
        cost = Exchange(exchange.link, Plan()).all_reduce(users, average=False)
        return self._counted(candidates, users, cost)

    def send_up(self, exchange: Exchange) -> ExchangeCost:
        """Count each parameter's users at rank 0 and return the cost; ``absent`` is then valid only there."""
        users = self.flags(self._all)
        cost = Exchange(exchange.link, Plan(algorithm="star")).reduce(users)
        return self._counted(self._all, users, cost)

    def agree_on_all(self, exchange: Exchange, beside: torch.Tensor) -> ExchangeCost:
        """Set ``absent`` by an exchange over all parameters, for ranks that hold only some of the averages.

        ``beside``, 1-D float32 on the CPU, is replaced by its sum over all ranks in the same exchange.
        """
        values = torch.cat([beside, self.flags(self._all)])
        cost = Exchange(exchange.link, Plan()).all_reduce(values, average=False)
        beside.copy_(values[: beside.numel()])
        return self._counted(self._all, values[beside.numel() :], cost)

    def flags(self, numbers: Sequence[int]) -> torch.Tensor:
        """Return 1 for every parameter of ``numbers`` that this rank has used, else 0, as float32."""
        flags = [float(each not in self.unused) for each in numbers]
        return torch.tensor(flags, dtype=torch.float32, device="cpu")

    @property
    def _all(self) -> range:
        return range(len(self._gradients.parameters))

    def _counted(self, numbers: Sequence[int], users: torch.Tensor, cost: ExchangeCost) -> ExchangeCost:
        """Set ``absent`` from each parameter's users; return the cost of an exchange without gradients."""
        counts = zip(numbers, users.tolist(), strict=True)
        self.absent = frozenset(number for number, count in counts if count == 0)
        cost.raw_nbytes = 0
        return cost


class Alone(BucketObserver):
    """An observer that keeps a bucket on the communication thread, in the order of steps."""

    wants_alone = True


class UsedParametersAgreement(Alone):
    """An observer of a step's last bucket, after which the ranks agree on the unused parameters.

    The agreement reads the whole average, so it waits for the step's other buckets, which may be on other
    lanes.
    """

    def __init__(self, used: UsedParameters, others: Sequence[Work] = ()) -> None:
        self._used, self._others = used, others

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:  # noqa: ARG002
        """Run the agreement and return its cost."""
        for each in self._others:
            each.settle()
        exchange.transport.check()  # another lane may have failed
        return self._used.agree(exchange)


class FlatBuckets:
    """The buckets of flat gradients with one layout. All ranks start them in the order of ``cut``.

    A parameter shares its warnings with the parameters of the same entry in ``groups``, or with its bucket if
    the entry is None. ``residual`` has this rank's encoding errors, in the layout of the gradients; None if
    the plan keeps no residuals. ``bucket_nbytes`` is as in ``Plan``; None means one bucket.
    """

    def __init__(
        self,
        sync: GradientSync,
        gradients: FlatGradients,
        names: Sequence[str],
        groups: Sequence[Hashable],
        residual: torch.Tensor | None,
        bucket_nbytes: int | None,
    ) -> None:
        counts = gradients.counts
        self.cut, self.residual = _filled(cut(counts, bucket_nbytes)), residual
        self.layouts = list[Layout]()
        self._sync = sync
        for bucket in self.cut:
            members = slice(bucket.parameters.start, bucket.parameters.stop)
            own = [("bucket", members.start) if each is None else each for each in groups[members]]
            self.layouts.append(Layout(tuple(names[members]), tuple(counts[members]), tuple(own)))

    def start(self, gradients: FlatGradients, number: int, observer: BucketObserver) -> BucketWork:
        """Start averaging bucket ``number``, from 0, on the communication thread."""
        return self._sync.start(self._bucket(gradients, number, observer))

    def feedback(self, gradients: FlatGradients, number: int) -> FlatResidual:
        """Return the error feedback of bucket ``number``, except for parameters that this rank didn't use."""
        if self.residual is None:
            return FlatResidual(None)
        bucket = self.cut[number]
        unused = [gradients.part(each, self.residual) for each in gradients.unused(bucket.parameters)]
        return FlatResidual(bucket.view(self.residual), unused)

    def run(
        self, gradients: FlatGradients, observer: BucketObserver, half: Half = Half.ALL_REDUCE
    ) -> ExchangeCost:
        """Exchange a gradient of one bucket on the calling thread; count and return the cost.

        An error is raised after it has ended the exchange.
        """
        sync, context = self._sync, self._sync.context
        bucket = self._bucket(gradients, 0, observer, half)
        staged = bucket.staged
        assert staged is not None
        context.exchange.transport.check()
        with (
            context.failing(f"while exchanging the {WHOLE} of step {sync.steps_done + 1}"),
            nullcontext() if context.ledger is None else profiled(f"exchange {WHOLE}"),
        ):
            with staged.stream.current:
                work = sync.run(bucket, staged.floats(), context)
            work.cost.device_nbytes += staged.crossing_nbytes
            staged.store()
            if sync.meter.agrees(work.step):
                cost, work.verdict = sync.meter.agree(context.exchange)
                work.cost += cost
        sync.meter.count(work, work.cost.total_s)
        return work.cost

    def _bucket(
        self, gradients: FlatGradients, number: int, observer: BucketObserver, half: Half = Half.ALL_REDUCE
    ) -> GradientBucket:
        bucket, layout, is_whole = self.cut[number], self.layouts[number], len(self.cut) == 1
        views = None
        if half is Half.ALL_REDUCE:  # otherwise each codec's parts would have separate owners
            views = self._sync.layouts.views(layout, self._sync.plan, self._sync.context.world)
        return GradientBucket(
            number,
            bucket.view(gradients.flat),
            is_last=number + 1 == len(self.cut),
            layout=layout,
            name=WHOLE if is_whole else f"bucket {number + 1}",
            request=BucketRequest(half, views=views),
            feedback=self.feedback(gradients, number),
            staged=gradients.staged(bucket),
            observers=[observer],
        )


def lay_out_residual(
    residuals: Residuals, gradients: FlatGradients, before: FlatGradients | None
) -> torch.Tensor | None:
    """Return the residual in the layout of ``gradients``; parameters in ``before`` keep their values."""
    buffer = gradients.buffer
    old = residuals.of(GRADIENT, (buffer if before is None else before.buffer).numel(), buffer)
    if old is None or before is None:
        return old
    places = {id(each): place for place, each in enumerate(before.parameters)}
    new = device_of(old).zeros(buffer.numel())
    for number, each in enumerate(gradients.parameters):
        if id(each) in places:
            write(gradients.part(number, new), before.part(places[id(each)], old))
    residuals.replace(GRADIENT, new)
    return new


def _filled(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the buckets, with every empty bucket, which can't be exchanged, merged into a neighbour."""
    found = list[Bucket]()
    for each in buckets:
        if found and not (each.count and found[-1].count):
            later = found.pop()  # the preceding bucket is later in the buffer
            members = range(each.parameters.start, later.parameters.stop)
            found.append(Bucket(each.start, later.stop, members))
        else:
            found.append(each)
    return found
