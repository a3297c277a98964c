"""Training on the hosts of a testbed: tasks, methods, and how a method trains a task."""
