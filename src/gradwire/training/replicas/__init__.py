"""What keeps the ranks alike: agreement beforehand, broadcasts, comparisons."""
