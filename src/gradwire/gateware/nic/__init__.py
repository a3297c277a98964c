"""A network card that compresses marked TCP streams, with the packets of ``gradwire.nic``."""
