"""The codec ``errbound`` as hardware, for absolute bounds."""
