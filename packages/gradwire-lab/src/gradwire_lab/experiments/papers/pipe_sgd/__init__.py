"""Pipe-SGD's figures: accuracy and step time of training with a pipeline of width two."""

EXHIBITS = {
    "pipe-sgd-equations-2-to-7": "pipe_sgd.equations:EXHIBIT",
    "pipe-sgd-figure-4": "pipe_sgd.figure_4:EXHIBIT",
    "pipe-sgd-figure-4-imagenet": "pipe_sgd.imagenet:EXHIBIT",
    "pipe-sgd-figure-4-cifar100-convex": "pipe_sgd.cifar_convex:EXHIBIT",
    "pipe-sgd-section-3-3-convex": "pipe_sgd.convex:EXHIBIT",
    "pipe-sgd-section-3-3-strongly-convex": "pipe_sgd.strongly_convex:EXHIBIT",
    "pipe-sgd-section-3-2-terngrad": "pipe_sgd.terngrad:EXHIBIT",
}
"""Each exhibit's module, by name, in the order of the printed tables."""
