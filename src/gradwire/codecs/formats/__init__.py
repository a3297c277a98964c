"""The codecs, one format each."""
