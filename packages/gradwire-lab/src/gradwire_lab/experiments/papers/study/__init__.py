"""The measurement study's tables and figures: the cost of an all-reduce, calculated and measured."""
