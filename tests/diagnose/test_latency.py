import numpy as np
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.api import compare
from lowbit.evaluate.latency import _verdict, saturates_int8
from lowbit.report.values import Unfused


def test_both_models_are_timed_and_what_did_not_fuse_is_named() -> None:
    feeds = small_feeds(4)
    quantized = lowbit.quantize(small_cnn(), data=feeds, preset="A16W8").quantized

    latency = compare(small_cnn(), quantized, feeds, budget="none", timed=True).latency

    assert latency.float_ms > 0
    assert latency.quantized_ms > 0
    assert 0 < latency.conversion_share < 1
    conv = next(row for row in latency.unfused if row.op_type == "Conv")
    assert "16 bits" in conv.why
    assert len(conv.nodes) == conv.count >= 1


def test_slower_is_said_plainly() -> None:
    unfused = (Unfused(op_type="Conv", count=3, why="", nodes=("a", "b", "c")),)

    slow = _verdict(10, 15, 0.4, unfused)
    assert "slower here: 15.00 ms against 10.00 ms" in slow
    assert "40%" in slow
    assert "3 Conv" in slow
    assert "2.00 times as fast" in _verdict(10, 5, 0, ())


def test_saturation_is_what_a_product_by_hand_shows() -> None:
    import onnxruntime as ort
    from onnx import TensorProto, helper

    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [value("x", TensorProto.UINT8, [1, 32]), value("w", TensorProto.INT8, [32, 8])],
        [value("y", TensorProto.INT32, [1, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    feed = {"x": np.full((1, 32), 200, np.uint8), "w": np.full((32, 8), 127, np.int8)}
    options = ort.SessionOptions()
    got = ort.InferenceSession(model.SerializeToString(), options).run(None, feed)[0]

    if not saturates_int8():
        np.testing.assert_array_equal(got, 32 * 200 * 127)
    else:
        assert got.max() <= 32 * 200 * 127
