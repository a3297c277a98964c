"""``gradwire doctor`` as one rank of those that a launcher has started."""

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

from gradwire.doctor.compare import Outcome, allowed_error, check_trial, compare, try_plan
from gradwire.doctor.diagnosis import Diagnosis, DoctorOptions
from gradwire.doctor.finding import Card, Finding, any_failed, merge, name_ranks
from gradwire.doctor.local import examine_machine
from gradwire.doctor.network import check_lines, look_at_line, show_line
from gradwire.doctor.software import check_clocks, measure_offset, tell_time
from gradwire.errors import JobError, LinkError
from gradwire.launch.local import RankContext
from gradwire.launch.rendezvous import join_launched, joined_group
from gradwire.links import Link, ProcessGroupLink
from gradwire.links.base import Link as BaseLink
from gradwire.plan import Plan

# What ranks say to each other beside their links: JSON under a word, in the store that all of them share.


class Words:
    """One rank's way to say and to hear, through the store that all ranks share."""

    def __init__(self, store: Store) -> None:
        self._store = PrefixStore("gradwire/doctor", store)

    def say(self, word: str, value: object) -> None:
        """Let every rank know a value, once, under a word. Raises ``LinkError``."""
        try:
            self._store.set(word, json.dumps(value))
        except RuntimeError as error:
            raise LinkError("the store of the ranks is gone, and the process that held it") from error

    def hear(self, word: str, timeout_s: float) -> Any:
        """Return what somebody said under a word.

        Raises
        ------
        LinkError
            When nobody does within the timeout, in seconds; when the process is gone that holds the store.
        """
        try:
            self._store.wait([word], timedelta(seconds=timeout_s))
            return json.loads(self._store.get(word))
        except DistStoreError as error:
            raise LinkError(f"waiting for the word {word!r}: nothing came within {timeout_s:g} s") from error
        except RuntimeError as error:
            gone = "the process that held the store is gone"
            raise LinkError(f"waiting for the word {word!r}: {gone}") from error


# The ranks' visit: rank 0 orders one examination after the other, all others do as they are told.
#
# Orders go through the store, so that a link that breaks takes nobody by surprise: rank 0 notes it and
# orders
# the end, which every rank obeys with the same exit code.

Connect = Callable[[], AbstractContextManager[BaseLink]]
"""Gives the link between all ranks for a ``with`` block; all ranks enter it together."""
STEP_S = 60.0
"""What one examination may take besides waits: a slow line is looked at for half a minute."""
_FAREWELL_S = 5.0
_EXAMINATIONS: Mapping[str, Callable[[BaseLink, int], None]] = {"clock": tell_time, "line": show_line}
"""What the rank does that rank 0 names in its order."""


class _Conductor:
    """Rank 0's voice: orders are numbered, and every rank hears all of them."""

    def __init__(self, words: Words) -> None:
        self._words, self._numbers = words, count()

    def order(self, what: str, **values: object) -> None:
        self._words.say(f"order/{next(self._numbers)}", {"do": what, **values})


def lead(
    words: Words, card: Card, world: int, connect: Connect, timeout_s: float, *, lines: bool = True
) -> Diagnosis:
    """Be rank 0, which has this card: examine all ranks and return what was found.

    ``connect`` makes the link, ``timeout_s`` limits any single wait, ``lines`` says whether line rates are
    looked at.
    """
    diagnosis, conductor, code = Diagnosis(), _Conductor(words), 1
    try:
        if _introduce(words, card, world, timeout_s, diagnosis):
            _examine(words, conductor, connect, timeout_s, diagnosis, lines=lines)
        code = int(any_failed(diagnosis.findings))
    finally:
        with suppress(LinkError):
            conductor.order("end", code=code)
            for rank in diagnosis.ranks[1:]:  # the store may be this process's: let them hear it
                words.hear(f"bye/{rank}", _FAREWELL_S)
    return diagnosis


def follow(words: Words, card: Card, rank: int, connect: Connect, timeout_s: float) -> int:
    """Be another rank: do what rank 0 orders, and return the exit code that it gives.

    The parameters are those of ``lead``. Raises ``LinkError`` when rank 0 is gone or silent.
    """
    words.say(f"card/{rank}", card.to_dict())
    patient = _Patient(words, card, rank)
    with ExitStack() as stack:
        for number in count():
            order = words.hear(f"order/{number}", 2 * timeout_s + STEP_S)
            if order["do"] == "end":
                words.say(f"bye/{rank}", True)
                return int(order["code"])
            with suppress(LinkError):  # rank 0 meets it, too, and orders the end
                if order["do"] == "connect":
                    patient.link = stack.enter_context(connect())
                else:
                    patient.obey(order)
    raise AssertionError("orders do not end by themselves")


class _Patient:
    """What a rank does on orders, over its link once it has one."""

    def __init__(self, words: Words, card: Card, rank: int) -> None:
        self._words, self._card, self._rank = words, card, rank
        self.link: BaseLink | None = None

    def obey(self, order: Mapping[str, Any]) -> None:
        """Do it, if it is this rank's to do. Raises ``LinkError``."""
        if self.link is None:
            return
        if order["do"] == "trial":
            outcome = try_plan(self.link, Plan.from_json(self._card.plan))
            self._words.say(f"trial/{self._rank}", asdict(outcome))
        elif order["rank"] == self._rank:
            _EXAMINATIONS[order["do"]](self.link, 0)


def _introduce(words: Words, card: Card, world: int, timeout_s: float, diagnosis: Diagnosis) -> bool:
    """Receive and compare all cards; return whether the ranks can be connected."""
    diagnosis.cards, diagnosis.ranks, deadline = [card], [0], monotonic() + timeout_s
    missing, strange = list[int](), list[int]()
    for rank in range(1, world):
        try:
            left_s = max(0.1, deadline - monotonic())
            diagnosis.cards.append(Card.from_dict(words.hear(f"card/{rank}", left_s)))
            diagnosis.ranks.append(rank)
        except LinkError:
            missing.append(rank)
        except JobError:
            strange.append(rank)
    if missing or strange:
        diagnosis.findings += card.findings
        if missing:
            told = (
                f"{name_ranks(missing)} of {world} said nothing within {timeout_s:g} s; start it there, too"
            )
            diagnosis.findings.append(Finding("ranks", "FAIL", told))
        if strange:
            told = f"{name_ranks(strange)} with another version; install the same on all machines"
            diagnosis.findings.append(Finding("same gradwire", "FAIL", told))
        return False
    across = compare(diagnosis.cards)
    diagnosis.findings += [*merge([each.findings for each in diagnosis.cards]), *across]
    unreachable = any(each.check == "reachable" and each.result == "FAIL" for each in across)
    return not unreachable


def _examine(
    words: Words,
    conductor: _Conductor,
    connect: Connect,
    timeout_s: float,
    diagnosis: Diagnosis,
    *,
    lines: bool,
) -> None:
    """Connect the ranks and use the link between them; what breaks is a finding."""
    doing = "connection"
    conductor.order("connect")
    try:
        with connect() as link:
            diagnosis.findings.append(Finding(doing, "ok", f"{link.world} ranks are connected"))
            doing = "clocks"
            for peer in range(1, link.world):
                conductor.order("clock", rank=peer)
                diagnosis.offsets[peer] = measure_offset(link, peer)
            diagnosis.findings.append(check_clocks(diagnosis.offsets))
            doing = "line rate"
            for peer in range(1, link.world) if lines else ():
                conductor.order("line", rank=peer)
                diagnosis.looks[peer] = look_at_line(link, peer)
            diagnosis.findings += check_lines(diagnosis.looks) if lines else []
            doing = "trial"
            diagnosis.findings += _trial(words, conductor, link, timeout_s, diagnosis.cards)
    except LinkError as error:
        remedy = "check the interface (GLOO_SOCKET_IFNAME), the firewall and whether all ranks still run"
        diagnosis.findings.append(Finding(doing, "FAIL", f"{error}; {remedy}"))


def _trial(
    words: Words, conductor: _Conductor, link: BaseLink, timeout_s: float, cards: list[Card]
) -> list[Finding]:
    """Try the plan where all ranks have the same one."""
    if not cards[0].plan or len({card.plan for card in cards}) > 1:
        return []
    plan = Plan.from_json(cards[0].plan)
    conductor.order("trial")
    outcomes = {0: try_plan(link, plan)}
    for rank in range(1, link.world):
        outcomes[rank] = Outcome(**words.hear(f"trial/{rank}", timeout_s + STEP_S))
    return [check_trial(outcomes, allowed_error(plan, link.world))]


def examine_ranks(rank: int, world: int, options: DoctorOptions) -> tuple[str, Diagnosis | None, int]:
    """Be one of several ranks; return the report's title and what to report, or None and the exit code.

    Rank 0 reports for all ranks, another one only what keeps it from being heard.
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
        return title, _with_failure(rank, card, "rank 0", f"{error}; is it still running?"), 1


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
