"""The shapes of the gradients of a ResNet-50, made from its architecture.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (2015), table 1: a 7x7 stem,
four stages of 3, 4, 6 and 3 bottleneck blocks of widths 64 to 512, expansion 4, and one linear
layer. Each convolution has no bias and is followed by a batch norm with weight and bias.
"""

from __future__ import annotations

import math

Shape = tuple[int, ...]

EXPANSION = 4
STAGES = [(64, 3), (128, 4), (256, 6), (512, 3)]


def _convolution(before: int, after: int, kernel: int) -> list[Shape]:
    return [(after, before, kernel, kernel), (after,), (after,)]


def _bottleneck(before: int, width: int, first: bool) -> list[Shape]:
    after = width * EXPANSION
    shapes = _convolution(before, width, 1) + _convolution(width, width, 3)
    shapes += _convolution(width, after, 1)
    return shapes + (_convolution(before, after, 1) if first else [])


def gradient_shapes(classes: int = 1000) -> list[Shape]:
    """161 tensors, in the order of the layers; backpropagation makes them in reverse."""
    shapes = _convolution(3, 64, 7)
    channels = 64
    for width, blocks in STAGES:
        for block in range(blocks):
            shapes += _bottleneck(channels, width, block == 0)
            channels = width * EXPANSION
    return [*shapes, (classes, channels), (classes,)]


def elements(shapes: list[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)
