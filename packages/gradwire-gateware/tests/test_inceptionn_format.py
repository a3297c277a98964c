import pytest

from gradwire.codecs import Inceptionn
from gradwire_gateware.formats import Classes


@pytest.mark.parametrize(
    ("exponent", "second"), [(-10, 122), (-8, 123), (-6, 124), (-1, 127), (-20, 117), (-7, 124)]
)
def test_the_classes_are_those_of_the_published_table(exponent: int, second: int) -> None:
    assert Classes.of(Inceptionn(2.0**exponent)) == (127 + exponent, second, 127)


def test_a_bounded_codec_counts_from_the_second_class() -> None:
    assert Classes.of(Inceptionn(2**-10, bounded=True)) == (117, 122, 122)
