"""What an exchange should cost: measured lines, hosts and codecs, a replay by frames, a walk by steps."""
