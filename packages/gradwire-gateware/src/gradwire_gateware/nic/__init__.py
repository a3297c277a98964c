"""A network card that compresses marked TCP streams, as ``gradwire_gateware.software_nic`` does."""
