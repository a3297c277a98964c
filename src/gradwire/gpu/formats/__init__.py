"""The kernels of each format, a module each; these import Triton, so ``table`` loads them when needed."""
