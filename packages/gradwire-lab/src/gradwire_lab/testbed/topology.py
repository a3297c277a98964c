"""The network of a testbed as data: its hosts, the rates of their links, and the switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.errors import SpecError
from gradwire.fields import Source, line, real, rows, whole
from gradwire.records import read_object
from gradwire.units import format_duration, format_rate, parse_duration, parse_rate

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_HOSTS = 64
LEAST_NBYTES_PER_S = 12_500.0
MOST_NBYTES_PER_S = 50e9
LONGEST_DELAY_S = 10.0
USUAL_MTU_NBYTES, LEAST_MTU_NBYTES, MOST_MTU_NBYTES = 1500, 1280, 9000
"""The usual, smallest, and largest MTU: Ethernet's, IPv6's minimum, and the MTU of jumbo frames."""
INTERFACE = "eth0"
"""The name of every host's link. A host's only other interface is ``lo``."""
NIC_HOST, NIC_LINK = "host", "link"
"""The interfaces of a NIC between a host and its link, in the NIC's own namespace."""
_UNITS = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}
_SOURCE = Source("a topology", 'write, for example, {"rates": ["1gbit", "1gbit"], "delay": "1ms"}')


@dataclass(frozen=True, slots=True)
class Topology:
    """A network of hosts at one switch, or in groups whose switches are connected by a core.

    Parameters
    ----------
    rates_nbytes_per_s
        The rate of each host's link, the same in both directions, for 1 to 64 hosts; None is unlimited.
    groups
        The sizes of groups of consecutive hosts, each with its own switch. If empty, there is one switch.
    core_nbytes_per_s
        The rate of the link between a group's switch and the core, in each direction; None is unlimited.
    delay_s
        The added one-way delay of every frame between two hosts.
    jitter_s
        The largest deviation of a frame's delay from ``delay_s``, at most ``delay_s``. Deviations are
        uniform, and frames to a host keep their order.
    loss
        The share of packets that are lost on purpose, independently of each other.
    mtu_nbytes
        The largest IP packet of every link.

    Raises
    ------
    SpecError
        For an invalid number or rate, and for groups that don't add up to the hosts.
    """

    rates_nbytes_per_s: tuple[float | None, ...]
    groups: tuple[int, ...] = ()
    core_nbytes_per_s: float | None = None
    delay_s: float = 0.0
    mtu_nbytes: int = USUAL_MTU_NBYTES
    jitter_s: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        for rate in (*self.rates_nbytes_per_s, self.core_nbytes_per_s):
            if rate is not None and not LEAST_NBYTES_PER_S <= rate <= MOST_NBYTES_PER_S:
                least, most = format_rate(LEAST_NBYTES_PER_S), format_rate(MOST_NBYTES_PER_S)
                raise SpecError(
                    f"expected testbed rates from {least} to {most}, got {format_rate(rate)}; pass e.g. 1gbit"
                )
        if not 0 <= self.delay_s <= LONGEST_DELAY_S:
            longest = format_duration(LONGEST_DELAY_S)
            raise SpecError(
                f"expected a testbed delay from 0 to {longest}, got {self.delay_s:g} s; pass e.g. 0.01"
            )
        if not 0 <= self.jitter_s <= self.delay_s:
            raise SpecError(
                f"expected a testbed jitter from 0 to its delay of {format_duration(self.delay_s)}, got "
                f"{self.jitter_s:g} s; lower the jitter, or raise the delay"
            )
        if not 0 <= self.loss < 1:
            raise SpecError(
                f"expected a share of packets to lose of at least 0 and below 1, got {self.loss:g}; pass "
                "e.g. 0.001"
            )
        if not LEAST_MTU_NBYTES <= self.mtu_nbytes <= MOST_MTU_NBYTES:
            raise SpecError(
                f"expected a testbed MTU from {LEAST_MTU_NBYTES} to {MOST_MTU_NBYTES} bytes, got "
                f"{self.mtu_nbytes}; pass e.g. {USUAL_MTU_NBYTES}"
            )
        self._check_groups()

    def _check_groups(self) -> None:
        if self.groups and (min(self.groups) < 1 or sum(self.groups) != self.hosts):
            sizes = ", ".join(map(str, self.groups))
            raise SpecError(
                f"expected groups that add up to the {self.hosts} hosts, got the sizes {sizes}; pass the "
                "size of every group"
            )
        if self.core_nbytes_per_s is not None and len(self.groups) < 2:
            raise SpecError(
                "core rate: expected at least 2 groups of hosts, got 1; pass more groups, or omit the core "
                "rate"
            )

    @classmethod
    def even(
        cls,
        hosts: int,
        rate: str | None = None,
        *,
        groups: int = 1,
        core: str | None = None,
        delay: str = "0",
        mtu_nbytes: int = USUAL_MTU_NBYTES,
        jitter: str = "0",
        loss: float = 0.0,
    ) -> Self:
        """Return a topology of equal hosts, with rates and times as text. Raises ``SpecError``."""
        _check_hosts(hosts)
        rates = (parse_rate(rate),) * hosts
        return cls(
            rates,
            equal_groups(hosts, groups),
            parse_rate(core),
            parse_duration(delay),
            mtu_nbytes,
            parse_duration(jitter),
            loss,
        )

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len(self.rates_nbytes_per_s)

    @property
    def group_of(self) -> tuple[int, ...]:
        """The group of each host, which is 0 for all hosts without groups."""
        sizes = self.groups or (self.hosts,)
        return tuple(group for group, size in enumerate(sizes) for _ in range(size))

    @property
    def is_impaired(self) -> bool:
        """Whether frames are delayed or lost on purpose."""
        return self.delay_s > 0 or self.loss > 0

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON dictionary that ``from_dict`` reads; values are exact."""
        return {
            "rates": [_rate_text(rate) for rate in self.rates_nbytes_per_s],
            "groups": list(self.groups),
            "core": _rate_text(self.core_nbytes_per_s),
            "delay": _delay_text(self.delay_s),
            "jitter": _delay_text(self.jitter_s),
            "loss": self.loss,
            "mtu": self.mtu_nbytes,
        }

    @classmethod
    def from_dict(cls, words: Mapping[str, Any]) -> Self:
        """Parse a JSON object, in which only ``rates`` is required. Raises ``SpecError``."""
        given = _SOURCE.fields(words, "rates", "groups", "core", "delay", "jitter", "loss", "mtu")
        return cls(
            given.get("rates", rows(_rate), ()),
            given.get("groups", rows(whole()), ()),
            given.get("core", _rate, None),
            given.get("delay", _duration, 0.0),
            given.get("mtu", whole(), USUAL_MTU_NBYTES),
            given.get("jitter", _duration, 0.0),
            given.get("loss", real(), 0.0),
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a topology from JSON text. Raises ``SpecError``."""
        return cls.from_dict(read_object(text, "a topology"))


def equal_groups(hosts: int, groups: int) -> tuple[int, ...]:
    """Return the sizes of equal groups, or none for one group. Raises ``SpecError``."""
    if not 1 <= groups <= hosts or hosts % groups:
        raise SpecError(
            f"expected a number of groups that divides the {hosts} hosts, got {groups}; pass a divisor"
        )
    return (hosts // groups,) * groups if groups > 1 else ()


def host_name(host: int) -> str:
    """Return a host's name in logs, which is also the name of its link's interface at the switch."""
    return f"h{host}"


def address(host: int) -> str:
    """Return a host's IPv4 address, in a /24 network."""
    return f"10.77.0.{host + 1}"


def hardware_address(host: int, *, nic: bool = False) -> str:
    """Return the locally administered Ethernet address of a host or of its NIC."""
    return f"02:67:77:00:{int(nic):02x}:{host + 1:02x}"


def _check_hosts(hosts: int) -> None:
    if not 1 <= hosts <= MOST_HOSTS:
        raise SpecError(f"expected 1 to {MOST_HOSTS} hosts in a testbed, got {hosts}; pass e.g. 4")


def _rate(word: object) -> float | None:
    return parse_rate(line(word))


def _duration(word: object) -> float:
    return parse_duration(line(word))


def _rate_text(nbytes_per_s: float | None) -> str:
    """Format a rate in the largest suitable unit, so that it parses to the same number."""
    if nbytes_per_s is None:
        return "unlimited"
    bits = 8 * nbytes_per_s
    for unit, size in _UNITS.items():
        text = f"{bits / size:.12g}{unit}"
        if bits >= size and "e" not in text and parse_rate(text) == nbytes_per_s:
            return text
    return f"{bits!r}bit"


def _delay_text(seconds: float) -> str:
    """Format a delay so that it parses to the same number."""
    if seconds == 0:
        return "0"
    for unit, size in (("ms", 1e3), ("us", 1e6)):
        text = f"{seconds * size:.12g}{unit}"
        if "e" not in text and parse_duration(text) == seconds:
            return text
    return f"{seconds:.30f}s"
