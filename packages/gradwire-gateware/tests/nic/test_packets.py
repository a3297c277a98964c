from gradwire.codecs import parse
from gradwire.codecs.inceptionn import Inceptionn
from gradwire_gateware.nic.packets import FIXED_NBYTES, frame_words, offer
from support.nic_frames import software_nic, tcp_frame


def test_cards_and_the_software_nic_have_the_same_settings() -> None:
    for spec in Inceptionn.EXAMPLES:
        codec = parse(spec)
        assert isinstance(codec, Inceptionn)
        (syn,) = software_nic(spec).handle(True, tcp_frame(b"", flags=2), 0)
        assert syn[FIXED_NBYTES + 4 : FIXED_NBYTES + 8] == offer(codec)


def test_the_largest_frame_has_so_many_words() -> None:
    assert [frame_words(mtu, 256) for mtu in (1490, 1491, 1500, 9000)] == [47, 48, 48, 282]
    assert frame_words(1500, 512) == 24
