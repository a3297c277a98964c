"""Master weights on the host, a replica on the device, and weights that travel in fewer bits."""
