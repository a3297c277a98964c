"""``gradwire doctor`` as one rank of a launched job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import count
from time import monotonic
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistStoreError

from gradwire.doctor import compare
from gradwire.doctor.finding import Card, Diagnosis, DoctorOptions, Finding, any_failed, merge, name_ranks
from gradwire.doctor.local import examine_machine
from gradwire.doctor.tcp import check_distance
from gradwire.errors import JobError, LinkError
from gradwire.launch.local import RankContext
from gradwire.launch.rendezvous import join_launched, joined_group
from gradwire.links import Link, ProcessGroupLink
from gradwire.links.base import Link as BaseLink
from gradwire.plan import Plan

_GONE = "the process that serves the ranks' store has ended"


class Words:
    """Named JSON values in the ranks' store, through which ranks communicate even if links fail."""

    def __init__(self, store: Store) -> None:
        self._store = PrefixStore("gradwire/doctor", store)

    def say(self, word: str, value: object) -> None:
        """Publish a value to all ranks under the key ``word``, once. Raises ``LinkError``."""
        try:
            self._store.set(word, json.dumps(value))
        except RuntimeError as error:
            raise LinkError(_GONE) from error

    def hear(self, word: str, timeout_s: float) -> Any:
        """Wait for the value under the key ``word``, and return it. Raises ``LinkError`` if none arrives."""
        try:
            self._store.wait([word], timedelta(seconds=timeout_s))
            return json.loads(self._store.get(word))
        except DistStoreError as error:
            raise LinkError(f"waiting for {word!r}: no value within {timeout_s:g} s") from error
        except RuntimeError as error:
            raise LinkError(f"waiting for {word!r}: {_GONE}") from error


# Rank 0 orders one examination after another, and the other ranks run the ordered examinations.
#
# Orders are sent through the store, so that a broken link blocks no rank. If a link breaks, rank 0 records
# the failure and orders the end, and every rank exits with the same code.

Connect = Callable[[], AbstractContextManager[BaseLink]]
"""A function whose context manager yields a link between all ranks. All ranks must enter it together."""
STEP_S = 60.0
"""The time limit of one examination, without its waits. Measuring a slow link takes half a minute."""
_FAREWELL_S = 5.0
_EXAMINATIONS: Mapping[str, Callable[[BaseLink, int], None]] = {
    "clock": compare.tell_time,
    "line": compare.show_line,
}
"""The function that an examined rank runs for each order."""


def lead(
    words: Words, card: Card, world: int, connect: Connect, timeout_s: float, *, lines: bool = True
) -> Diagnosis:
    """Examine all ranks as rank 0, and the links' rates if ``lines``; ``timeout_s`` limits each wait."""
    leader, code = _LeadingRank(words, timeout_s), 1
    try:
        if leader.introduce(card, world):
            leader.examine(connect, lines=lines)
        code = int(any_failed(leader.diagnosis.findings))
    finally:
        with suppress(LinkError):
            leader.order("end", code=code)
            for rank in leader.diagnosis.ranks[1:]:  # this process may serve the store, so it exits last
                words.hear(f"bye/{rank}", _FAREWELL_S)
    return leader.diagnosis


def follow(words: Words, card: Card, rank: int, connect: Connect, timeout_s: float) -> int:
    """Run rank 0's orders on another rank, and return the exit code that it sends. Raises ``LinkError``."""
    words.say(f"card/{rank}", asdict(card))
    link: BaseLink | None = None
    numbers = count()
    with ExitStack() as stack:
        while True:
            order = words.hear(f"order/{next(numbers)}", 2 * timeout_s + STEP_S)
            if order["do"] == "end":
                words.say(f"bye/{rank}", True)
                return int(order["code"])
            with suppress(LinkError):  # rank 0 also gets the error, and orders the end
                if order["do"] == "connect":
                    link = stack.enter_context(connect())
                elif link is not None and order["do"] == "trial":
                    words.say(f"trial/{rank}", asdict(compare.try_plan(link, Plan.from_json(card.plan))))
                elif link is not None and order["rank"] == rank:
                    _EXAMINATIONS[order["do"]](link, 0)


class _LeadingRank:
    """Rank 0 of the examination, which sends numbered orders to all ranks and collects the diagnosis."""

    def __init__(self, words: Words, timeout_s: float) -> None:
        self._words, self._timeout_s, self._numbers = words, timeout_s, count()
        self.diagnosis = Diagnosis()

    def order(self, what: str, **values: object) -> None:
        """Publish the next order to all ranks."""
        self._words.say(f"order/{next(self._numbers)}", {"do": what, **values})

    def introduce(self, card: Card, world: int) -> bool:
        """Receive and compare all ranks' cards, and return whether the ranks can connect to each other."""
        found, deadline = self.diagnosis, monotonic() + self._timeout_s
        found.cards, found.ranks = [card], [0]
        missing, strange = list[int](), list[int]()
        for rank in range(1, world):
            try:
                left_s = max(0.1, deadline - monotonic())
                found.cards.append(Card.from_dict(self._words.hear(f"card/{rank}", left_s)))
                found.ranks.append(rank)
            except LinkError:
                missing.append(rank)
            except JobError:
                strange.append(rank)
        if missing or strange:
            found.findings += card.findings
        if missing:
            silent = f"{name_ranks(missing)} of {world} did not respond within {self._timeout_s:g} s"
            remedy = "also start gradwire doctor on these ranks"
            found.findings.append(Finding("ranks", "FAIL", f"{silent}; {remedy}"))
        if strange:
            other = f"{name_ranks(strange)} sent descriptions of another version"
            remedy = "install the same gradwire on all machines"
            found.findings.append(Finding("same gradwire", "FAIL", f"{other}; {remedy}"))
        if missing or strange:
            return False
        across = compare.compare(found.cards)
        found.findings += [*merge([each.findings for each in found.cards]), *across]
        return not any(each.check == "reachable" and each.result == "FAIL" for each in across)

    def examine(self, connect: Connect, *, lines: bool) -> None:
        """Connect the ranks, measure clocks and links, and try the plan. A broken link becomes a finding."""
        found, doing = self.diagnosis, "connection"
        self.order("connect")
        try:
            with connect() as link:
                found.findings.append(Finding(doing, "ok", f"{link.world} ranks are connected"))
                doing = "clocks"
                for peer in range(1, link.world):
                    self.order("clock", rank=peer)
                    found.offsets[peer] = compare.measure_offset(link, peer)
                found.findings.append(compare.check_clocks(found.offsets))
                if lines:
                    doing = "line rate"
                    for peer in range(1, link.world):
                        self.order("line", rank=peer)
                        found.looks[peer] = compare.look_at_line(link, peer)
                    found.findings += compare.check_lines(found.looks)
                    found.findings += check_distance(found.cards, found.looks)
                doing = "trial"
                found.findings += self._try_plan(link)
        except LinkError as error:
            remedy = "check the interface (GLOO_SOCKET_IFNAME), the firewall and that all ranks still run"
            found.findings.append(Finding(doing, "FAIL", f"{error}; {remedy}"))

    def _try_plan(self, link: BaseLink) -> list[Finding]:
        """Try the plan on all ranks, and return the finding; [] unless all ranks have the same plan."""
        plans = {card.plan for card in self.diagnosis.cards}
        if len(plans) > 1 or "" in plans:
            return []
        plan = Plan.from_json(plans.pop())
        self.order("trial")
        outcomes = {0: compare.try_plan(link, plan)}
        for rank in range(1, link.world):
            outcomes[rank] = compare.Outcome(**self._words.hear(f"trial/{rank}", self._timeout_s + STEP_S))
        return [compare.check_trial(outcomes, compare.allowed_error(plan, link.world))]


def examine_ranks(rank: int, world: int, options: DoctorOptions) -> tuple[str, Diagnosis | int]:
    """Return a title, and the diagnosis to report; or the exit code, if rank 0 reports for this rank."""
    context: RankContext[None] = RankContext(
        rank, world, lambda _: None, lambda: join_launched(options.timeout_s)
    )
    title = f"gradwire doctor: rank {rank} of {world}"
    card = examine_machine(options.plan_file, world, context.ranks_here)

    def alone(check: str, problem: str) -> Diagnosis:
        return Diagnosis([*card.findings, Finding(check, "FAIL", problem)], [card], [rank])

    try:
        store = context.join_store()
    except JobError as error:
        return title, alone("rendezvous", str(error))
    words, connect = Words(store), partial(_connected, store, rank, world, options.timeout_s, card)
    if rank == 0:
        diagnosis = lead(words, card, world, connect, options.timeout_s, lines=options.lines)
        return f"gradwire doctor: {world} ranks", diagnosis
    try:
        return title, follow(words, card, rank, connect, options.timeout_s)
    except LinkError as error:
        return title, alone("rank 0", f"{error}; check that rank 0 still runs")


@contextmanager
def _connected(store: Store, rank: int, world: int, timeout_s: float, card: Card) -> Iterator[Link]:
    tos = Plan.from_json(card.plan).tos if card.plan else 0
    with (
        joined_group(store, rank, world, timeout_s) as group,
        closing(ProcessGroupLink(group, timeout_s=timeout_s, tos=tos)) as link,
    ):
        yield link
