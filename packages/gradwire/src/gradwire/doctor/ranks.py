"""``gradwire doctor`` as one rank of a launched job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import count
from time import monotonic
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistStoreError

from gradwire.doctor.compare import (
    Outcome,
    allowed_error,
    check_clocks,
    check_lines,
    check_trial,
    compare,
    look_at_line,
    measure_offset,
    show_line,
    tell_time,
    try_plan,
)
from gradwire.doctor.finding import Card, Diagnosis, DoctorOptions, Finding, any_failed, merge, name_ranks
from gradwire.doctor.local import examine_machine
from gradwire.doctor.tcp import check_distance
from gradwire.errors import JobError, LinkError
from gradwire.launch.local import RankContext
from gradwire.launch.rendezvous import join_launched, joined_group
from gradwire.links import Link, ProcessGroupLink
from gradwire.links.base import Link as BaseLink
from gradwire.plan import Plan


class Words:
    """Named JSON values in the ranks' store, through which ranks communicate even if links fail."""

    def __init__(self, store: Store) -> None:
        self._store = PrefixStore("gradwire/doctor", store)

    def say(self, word: str, value: object) -> None:
        """Publish a value to all ranks under the key ``word``, once. Raises ``LinkError``."""
        try:
            self._store.set(word, json.dumps(value))
        except RuntimeError as error:
            raise LinkError("the process that serves the ranks' store has ended") from error

    def hear(self, word: str, timeout_s: float) -> Any:
        """Wait for the value under the key ``word``, and return it.

        Raises ``LinkError`` if no rank publishes the value in time, or if the process that serves the store
        has ended.
        """
        try:
            self._store.wait([word], timedelta(seconds=timeout_s))
            return json.loads(self._store.get(word))
        except DistStoreError as error:
            raise LinkError(f"waiting for {word!r}: no value within {timeout_s:g} s") from error
        except RuntimeError as error:
            gone = "the process that serves the ranks' store has ended"
            raise LinkError(f"waiting for {word!r}: {gone}") from error


# Rank 0 orders one examination after another, and the other ranks run the ordered examinations.
#
# Orders are sent through the store, so that a broken link blocks no rank. If a link breaks, rank 0 records
# the failure and orders the end, and every rank exits with the same code.

Connect = Callable[[], AbstractContextManager[BaseLink]]
"""A function whose context manager yields a link between all ranks. All ranks must enter it together."""
STEP_S = 60.0
"""The time limit of one examination, without its waits. Measuring a slow link takes half a minute."""
_FAREWELL_S = 5.0
_EXAMINATIONS: Mapping[str, Callable[[BaseLink, int], None]] = {"clock": tell_time, "line": show_line}
"""The function that an examined rank runs for each order."""


def lead(
    words: Words, card: Card, world: int, connect: Connect, timeout_s: float, *, lines: bool = True
) -> Diagnosis:
    """Run the examination as rank 0, and return the diagnosis of all ranks.

    ``card`` is rank 0's card, ``connect`` opens the link, ``timeout_s`` limits each wait, and ``lines`` says
    whether to measure the rates of links.
    """
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
    """Run rank 0's orders on another rank, and return the exit code that rank 0 sends.

    The parameters are those of ``lead``. Raises ``LinkError`` if rank 0 has ended or does not answer.
    """
    words.say(f"card/{rank}", card.to_dict())
    link: BaseLink | None = None
    with ExitStack() as stack:
        for number in count():
            order = words.hear(f"order/{number}", 2 * timeout_s + STEP_S)
            if order["do"] == "end":
                words.say(f"bye/{rank}", True)
                return int(order["code"])
            with suppress(LinkError):  # rank 0 also gets the error, and orders the end
                if order["do"] == "connect":
                    link = stack.enter_context(connect())
                elif link is not None and order["do"] == "trial":
                    words.say(f"trial/{rank}", asdict(try_plan(link, Plan.from_json(card.plan))))
                elif link is not None and order["rank"] == rank:
                    _EXAMINATIONS[order["do"]](link, 0)
    raise AssertionError("unreachable, because order numbers are unlimited")


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
                found.findings.append(
                    Finding("ranks", "FAIL", f"{silent}; also start gradwire doctor on these ranks")
                )
            if strange:
                remedy = "install the same gradwire on all machines"
                other = f"{name_ranks(strange)} sent descriptions of another version; {remedy}"
                found.findings.append(Finding("same gradwire", "FAIL", other))
            return False
        across = compare(found.cards)
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
                    found.offsets[peer] = measure_offset(link, peer)
                found.findings.append(check_clocks(found.offsets))
                doing = "line rate"
                for peer in range(1, link.world) if lines else ():
                    self.order("line", rank=peer)
                    found.looks[peer] = look_at_line(link, peer)
                if lines:
                    found.findings += [*check_lines(found.looks), *check_distance(found.cards, found.looks)]
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
        outcomes = {0: try_plan(link, plan)}
        for rank in range(1, link.world):
            outcomes[rank] = Outcome(**self._words.hear(f"trial/{rank}", self._timeout_s + STEP_S))
        return [check_trial(outcomes, allowed_error(plan, link.world))]


def examine_ranks(rank: int, world: int, options: DoctorOptions) -> tuple[str, Diagnosis | None, int]:
    """Run the examination as one of several ranks, and return the report's title, diagnosis, and exit code.

    Rank 0 reports for all ranks. Another rank's diagnosis is None, unless the rank cannot reach rank 0.
    """
    context: RankContext[None] = RankContext(
        rank, world, lambda _: None, lambda: join_launched(options.timeout_s)
    )
    title = f"gradwire doctor: rank {rank} of {world}"
    card = examine_machine(options.plan_file, world, context.ranks_here)
    try:
        store = context.join_store()
    except JobError as error:
        return title, _with_failure(rank, card, "rendezvous", str(error)), 1
    words, connect = Words(store), partial(_connected, store, rank, world, options.timeout_s, card)
    if rank == 0:
        diagnosis = lead(words, card, world, connect, options.timeout_s, lines=options.lines)
        return f"gradwire doctor: {world} ranks", diagnosis, 0
    try:
        return title, None, follow(words, card, rank, connect, options.timeout_s)
    except LinkError as error:
        return title, _with_failure(rank, card, "rank 0", f"{error}; check that rank 0 still runs"), 1


@contextmanager
def _connected(store: Store, rank: int, world: int, timeout_s: float, card: Card) -> Iterator[Link]:
    tos = Plan.from_json(card.plan).tos if card.plan else 0
    with joined_group(store, rank, world, timeout_s) as group:
        link = ProcessGroupLink(group, timeout_s=timeout_s, tos=tos)
        try:
            yield link
        finally:
            link.close()


def _with_failure(rank: int, card: Card, check: str, detail: str) -> Diagnosis:
    return Diagnosis([*card.findings, Finding(check, "FAIL", detail)], [card], [rank])
