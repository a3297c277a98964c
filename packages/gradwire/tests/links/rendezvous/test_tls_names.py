"""Which rank may show which certificate, where ``GRADWIRE_TLS_NAMES`` says so."""

from __future__ import annotations

import pytest

from gradwire.errors import LinkError
from gradwire.links.rendezvous.tls import NAMES, Names, check_name, encryption, names_in
from support.certificates import needs_openssl, variables

COMMON = ((("organizationName", "ours"),), (("commonName", "Host1"),))


@pytest.mark.parametrize(
    ("text", "rank", "names"),
    [
        ("0=host1", 0, {"host1"}),
        ("0-7=host1,8-15=host2", 7, {"host1"}),
        ("0-7=host1,8-15=host2", 8, {"host2"}),
        (" 0=host1,  *=Spare\n", 0, {"host1", "spare"}),
        ("0=host1, *=spare", 5, {"spare"}),
        ("3=10.0.0.1", 3, {"10.0.0.1"}),
    ],
)
def test_a_rank_has_the_names_of_its_entries(text: str, rank: int, names: set[str]) -> None:
    assert Names(text).of(rank) == names


def test_a_rank_without_a_name_is_an_error() -> None:
    with pytest.raises(LinkError, match=r"GRADWIRE_TLS_NAMES has no name for rank 2; add 2=NAME, or \*=NAME"):
        Names("0-1=host1").of(2)


@pytest.mark.parametrize("text", ["", "host1", "0=", "=host1", "0-=host1", "-1=host1", "a=b", "0=x=y"])
def test_what_is_no_list_of_names_is_an_error(text: str) -> None:
    with pytest.raises(LinkError, match=r"GRADWIRE_TLS_NAMES: expected entries such as 0=host1, .*, got '"):
        Names(text)


def test_the_common_name_counts_where_there_is_no_other() -> None:
    others = (("DNS", "HOST2"), ("IP Address", "10.0.0.2"), ("email", "x@y"))
    assert names_in({"subject": COMMON}) == {"host1"}
    assert names_in({"subject": COMMON, "subjectAltName": others}) == {"host2", "10.0.0.2"}
    assert names_in({}) == names_in(None) == frozenset()


def test_another_name_than_the_ranks_is_an_error() -> None:
    check_name(3, frozenset({"host1", "host2"}), {"subject": COMMON})
    with pytest.raises(LinkError) as caught:
        check_name(3, frozenset({"host2"}), {"subject": COMMON})
    assert str(caught.value) == (
        "rank 3: expected a certificate for host2, got one for host1; give this rank a matching "
        "certificate, or change GRADWIRE_TLS_NAMES"
    )
    with pytest.raises(LinkError, match="got one for no host;"):
        check_name(3, frozenset({"*"}), {})


@needs_openssl
def test_a_rank_with_the_certificate_of_another_is_told_before_it_calls_anybody() -> None:
    ours = encryption({**variables(), NAMES: "0=host1, 5=host2"})
    assert ours is not None
    one, two = frozenset({"host1"}), frozenset({"host2"})
    assert ours.of_link(0, [0, 5]).expected == {0: one, 1: two}
    assert ours.of_link(1, [5, 0]).expected == {0: two, 1: one}
    with pytest.raises(
        LinkError, match=r"rank 5: .* for host2 from .*NAMES, got GRADWIRE_TLS_CERT for host1"
    ):
        ours.of_link(1, [0, 5])


@needs_openssl
def test_names_without_certificates_are_an_error() -> None:
    with pytest.raises(LinkError, match=r"GRADWIRE_TLS_NAMES is set, but GRADWIRE_TLS_KEY and .* are not"):
        encryption({NAMES: "0=host1"})
    with pytest.raises(LinkError, match="expected entries such as"):
        encryption({**variables(), NAMES: "host1"})
