"""The front end for FSDP2: gradwire in place of its collectives."""
