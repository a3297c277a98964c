"""The smart NIC: its ring, the steps with the all-reduce in the NIC, and the hardware resources."""
