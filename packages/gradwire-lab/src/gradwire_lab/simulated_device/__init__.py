"""A simulated device on the CPU that delays every operation as long as possible."""
