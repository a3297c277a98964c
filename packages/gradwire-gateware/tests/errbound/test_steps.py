from gradwire.codecs import ErrBound
from gradwire_gateware.errbound.share import Steps


def test_steps_are_those_of_the_bound() -> None:
    assert Steps.of(ErrBound(2.0**-10)) == (117, (127, 32767))
    assert Steps.of(ErrBound(2.0**115)) == (242, (127, 4095))
    assert Steps.of(ErrBound(2.0**126)) == (253, (1, 1))
