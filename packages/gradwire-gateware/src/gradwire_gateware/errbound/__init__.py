"""The codec ``errbound`` as hardware, with absolute and relative bounds."""
