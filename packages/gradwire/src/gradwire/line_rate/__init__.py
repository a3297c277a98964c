"""What the line between two ranks carries, measured over the link that training uses."""
