"""A device on the CPU that is as late as a device can be."""
