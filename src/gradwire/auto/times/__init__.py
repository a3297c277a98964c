"""What steps, codecs, hosts, and lines take."""
