"""The front end for DistributedDataParallel: gradwire as its communication hook."""
