"""Pipe-SGD's figures: how a pipeline of width two trains, and how long its steps take."""

from typing import Any

from gradwire_lab.experiments.papers.exhibit import Exhibit
from gradwire_lab.experiments.papers.pipe_sgd import (
    cifar_convex,
    convex,
    equations,
    figure_4,
    imagenet,
    strongly_convex,
    terngrad,
)

EXHIBITS: tuple[Exhibit[Any], ...] = tuple(
    module.EXHIBIT
    for module in (equations, figure_4, imagenet, cifar_convex, convex, strongly_convex, terngrad)
)
