"""The NIC: both directions between a host and its link."""

from __future__ import annotations

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire.codecs import Inceptionn
from gradwire_gateware.nic.receiver import Receiver
from gradwire_gateware.nic.transmitter import Transmitter, flow_ports
from gradwire_gateware.stream import AxiStream, Circuit


class Card(Circuit):
    """A NIC that forwards Ethernet frames between a host and its link, and compresses marked streams."""

    def __init__(self, codec: Inceptionn, width: int = 256, *, mtu: int = 1500, flows: int = 8) -> None:
        self._transmitter = Transmitter(codec, width, mtu=mtu, flows=flows)
        self._receiver = Receiver(codec, width, mtu=mtu)
        super().__init__(
            {
                "host_s_axis": In(AxiStream(width)),
                "link_m_axis": Out(AxiStream(width)),
                "link_s_axis": In(AxiStream(width)),
                "host_m_axis": Out(AxiStream(width)),
                **flow_ports(flows),
            }
        )

    def _describe(self, m: Module) -> None:
        m.submodules.transmitter = transmitter = self._transmitter
        m.submodules.receiver = receiver = self._receiver
        wiring.connect(m, wiring.flipped(self.host_s_axis), transmitter.s_axis)
        wiring.connect(m, transmitter.m_axis, wiring.flipped(self.link_m_axis))
        wiring.connect(m, wiring.flipped(self.link_s_axis), receiver.s_axis)
        wiring.connect(m, receiver.m_axis, wiring.flipped(self.host_m_axis))
        m.d.comb += [getattr(transmitter, name).eq(getattr(self, name)) for name in flow_ports(2)]
