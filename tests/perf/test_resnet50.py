"""The gradients of a ResNet-50, against the numbers that are published for it."""

from harness import resnet50


def test_counts_are_those_of_the_published_model() -> None:
    shapes = resnet50.gradient_shapes(1000)
    assert len(shapes) == 161
    assert resnet50.elements(shapes) == 25_557_032


def test_stem_and_classifier() -> None:
    shapes = resnet50.gradient_shapes(10)
    assert shapes[0] == (64, 3, 7, 7)
    assert shapes[-2:] == [(10, 2048), (10,)]
    assert round(4 * resnet50.elements(shapes) / 1e6) == 94


def test_53_convolutions_each_with_a_batch_norm() -> None:
    shapes = resnet50.gradient_shapes()[:-2]
    convolutions = [shape for shape in shapes if len(shape) == 4]
    assert len(convolutions) == 53
    assert len(shapes) == 3 * len(convolutions)
