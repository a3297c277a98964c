"""Pipe-SGD's figures: how a pipeline of width two trains, and how long its steps take."""

EXHIBITS = {
    "pipe-sgd-equations-2-to-7": "pipe_sgd.equations:EXHIBIT",
    "pipe-sgd-figure-4": "pipe_sgd.figure_4:EXHIBIT",
    "pipe-sgd-figure-4-imagenet": "pipe_sgd.imagenet:EXHIBIT",
    "pipe-sgd-figure-4-cifar100-convex": "pipe_sgd.cifar_convex:EXHIBIT",
    "pipe-sgd-section-3-3-convex": "pipe_sgd.convex:EXHIBIT",
    "pipe-sgd-section-3-3-strongly-convex": "pipe_sgd.strongly_convex:EXHIBIT",
    "pipe-sgd-section-3-2-terngrad": "pipe_sgd.terngrad:EXHIBIT",
}
"""Name -> where the exhibit is, in the order of the tables that are printed."""
