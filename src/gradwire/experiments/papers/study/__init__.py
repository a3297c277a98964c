"""The measurement study's tables and figures: what an all-reduce costs, by formula and measured."""
