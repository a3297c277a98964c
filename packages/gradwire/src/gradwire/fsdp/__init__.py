"""gradwire in place of FSDP2's collectives."""
