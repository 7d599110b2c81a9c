"""The network of large feature maps is as large as it says, and gives a map of its input's size."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort

from bench.segmentation import images, segmentation_network


def test_it_has_the_convolutions_and_parameters_of_the_network_it_stands_for() -> None:
    model = onnx.load_from_string(segmentation_network())

    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    floats = [c for c in model.graph.initializer if c.data_type == onnx.TensorProto.FLOAT]

    assert len(convolutions) == 119
    assert 1_100_000 < sum(int(np.prod(c.dims)) for c in floats) < 1_150_000


def test_its_output_varies_over_the_image_and_is_not_saturated() -> None:
    session = ort.InferenceSession(segmentation_network())

    (image,) = images(1)
    (found,) = session.run(None, {"x": image})

    assert found.shape == (1, 1, 320, 320)
    assert found.std() > 0.02
    assert 0.02 < found.mean() < 0.98


def test_images_are_the_same_each_time_and_differ_from_each_other() -> None:
    first, second = images(2)
    again, _ = images(2)

    np.testing.assert_array_equal(first, again)
    assert np.abs(first - second).max() > 1
    np.testing.assert_allclose(first.std(), 1, atol=1e-3)
