"""What the doctor examines, one thing a module."""
