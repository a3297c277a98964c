"""Pipe-SGD's figures: accuracy and step time of training with a pipeline of width two."""
