"""What a plan makes of a codec: floats for NICs (``offload``), and a scale for each frame (``scale``)."""
