"""An exchange replayed frame by frame: lines, hosts, cores, and what a codec costs there."""
