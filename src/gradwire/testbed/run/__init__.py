"""A command on all hosts of a testbed: started, watched, recorded."""
