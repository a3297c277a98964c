"""A hardware NIC that compresses marked TCP streams, compatible with ``gradwire_gateware.software_nic``."""
