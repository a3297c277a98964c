"""The codecs and the ring all-reduce as hardware, described in Amaranth; needs ``gradwire[gateware]``.

Every block reads and writes AXI streams (``stream``), gives the bytes of the native codecs, and moves a word
in every cycle. Nothing here is imported unless it is asked for, because Amaranth is an extra.
"""
