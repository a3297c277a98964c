"""Training with master weights on the host and a replica on the device, with weights sent in fewer bits."""
