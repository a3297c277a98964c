"""gradwire as the communication hook of DistributedDataParallel."""
