"""The ``errbound`` codec in hardware, with absolute and relative bounds."""
