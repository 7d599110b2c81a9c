from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from lowbit.errors import ModelError
from lowbit.graph import io
from lowbit.graph.onnx_passes import require_opset
from lowbit.normalize.normalize import LOWEST_OPSET, normalize

IR_VERSIONS = {19: 9, 20: 9, 21: 10, 22: 10}


def _cnn(parse, floats, norm, opset: int) -> onnx.ModelProto:
    """Make a small network of the operators that changed most, as ``opset`` writes them."""
    clip = "Clip<min=0.0, max=6.0>(b)" if opset < 11 else "Clip(b, low, high)"
    pad = "Pad<pads=[0,0,1,1,0,0,1,1]>(r)" if opset < 11 else "Pad(r, pads)"
    squeeze = "Squeeze<axes=[2,3]>(a)" if opset < 13 else "Squeeze(a, axes)"
    dropout = "Dropout<ratio=0.3>(q)" if opset < 12 else "Dropout(q, ratio)"
    mean = "ReduceMean<axes=[2,3]>(s)" if opset < 18 else "ReduceMean(s, axes)"
    split = {True: "Split<axis=1, split=[1,3]>(p)", False: "Split<axis=1>(p, sizes)"}[opset < 13]
    unsqueeze = "Unsqueeze<axes=[0]>(d)" if opset < 13 else "Unsqueeze(d, zero)"
    upsample = (
        "Upsample<mode='nearest', scales=[1.0,1.0,2.0,2.0]>(m)"
        if opset < 9
        else "Upsample<mode='nearest'>(m, scales)"
        if opset < 10
        else "Resize<mode='nearest'>(m, scales)"
        if opset < 11
        else "Resize<mode='nearest', coordinate_transformation_mode='asymmetric',"
        " nearest_mode='floor'>(m, none, scales)"
    ).replace("'", '"')
    return parse(
        f"""g (float[1,3,8,8] x) => (float[1,1,4] y, float[1,1,n,k] part) {{
          [conv] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)
          [bn] b = BatchNormalization(c, gamma, beta, mean, var)
          [clip] r = {clip}
          [pad] e = {pad}
          [pool] m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(e)
          [up] p = {upsample}
          [split] part, rest = {split}
          [join] s = Concat<axis=1>(part, rest)
          [mean] a = {mean}
          [squeeze] q = {squeeze}
          [drop] o = {dropout}
          [gemm] f = Gemm<transB=1>(o, v, t)
          [soft] d = Softmax<axis=1>(f)
          [unsqueeze] y = {unsqueeze}
        }}""",
        {
            "w": floats(4, 3, 3, 3),
            "v": floats(4, 4),
            "t": floats(4),
            "low": np.array(0, np.float32),
            "high": np.array(6, np.float32),
            "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
            "axes": np.int64([2, 3]),
            "zero": np.int64([0]),
            "sizes": np.int64([1, 3]),
            "ratio": np.array(0.3, np.float32),
            "scales": np.float32([1, 1, 2, 2]),
            "none": np.zeros(0, np.float32),
            **norm(4),
        },
        opset=opset,
        ir_version=IR_VERSIONS.get(opset, 8),
    )


@pytest.mark.parametrize("opset", range(7, 23))
def test_a_network_of_any_operator_set_is_normalized(
    parse, floats, norm, assert_same, opset: int
) -> None:
    original = _cnn(parse, floats, norm, opset)

    normal = normalize(io.load(original))

    assert normal.opset_imports[""] == max(opset, LOWEST_OPSET)
    assert {"conv", "clip", "pad", "pool", "split", "gemm"} <= {n.name for n in normal.graph}
    assert not {"BatchNormalization", "Dropout", "Constant"} & {n.op_type for n in normal.graph}
    onnx.checker.check_model(ir.to_proto(normal), full_check=True)
    assert_same(original, normal, {"x": floats(1, 3, 8, 8)})


@pytest.mark.parametrize("opset", [1, 5, 6])
def test_an_operator_set_too_old_is_refused(parse, opset: int) -> None:
    original = parse("g (float[4] x) => (float[4] y) { y = Relu(x) }", opset=opset, ir_version=3)

    with pytest.raises(ModelError, match=f"at operator set {opset}; 7 is the oldest .* Export it"):
        normalize(io.load(original))


def test_a_model_that_is_there_already_is_itself(parse) -> None:
    model = io.load(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }"))

    assert require_opset(model, 17) is model


def test_a_conversion_keeps_weights_names_and_metadata(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[2,64] x) => (float[2,64] y) { [mat] m = MatMul(x, w) [relu] y = Relu(m) }",
        {"w": floats(64, 64)},
        opset=11,
    )
    original.metadata_props.add(key="author", value="somebody")
    model = io.load(original)

    converted = require_opset(model, 21)

    assert converted.opset_imports[""] == 21
    assert [node.name for node in converted.graph] == ["mat", "relu"]
    assert converted.metadata_props["author"] == "somebody"
    assert (
        converted.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value
    )
    assert list(model.graph.initializers) == ["w"]
    assert_same(original, converted, {"x": floats(2, 64)})


def test_initializers_that_are_inputs_survive_a_conversion(parse, floats, assert_same) -> None:
    original = parse(
        "g (float[2,64] x, float[64,64] w) => (float[2,64] y) { y = MatMul(x, w) }",
        {"w": floats(64, 64)},
        opset=8,
        ir_version=3,
    )

    converted = require_opset(io.load(original), 13)

    assert_same(original, converted, {"x": floats(2, 64)})


def test_branches_are_converted(parse, floats, assert_same) -> None:
    original = parse(
        """g (float[1,4] x, bool p) => (float[4] y) {
          y = If(p) <
            then_branch = t () => (float[4] a) { s = Squeeze<axes=[0]>(x) a = Neg(s) },
            else_branch = e () => (float[4] b) { b = Squeeze<axes=[0]>(x) }
          >
        }""",
        opset=11,
    )

    normal = normalize(io.load(original))

    for branch in (True, False):
        assert_same(original, normal, {"x": floats(1, 4), "p": np.array(branch)})


def test_what_cannot_be_converted_is_explained(parse, monkeypatch) -> None:
    import onnx.version_converter

    def fail(*_arguments) -> None:
        raise RuntimeError("no adapter for Foo\nstack")

    monkeypatch.setattr(onnx.version_converter, "convert_version", fail)
    model = io.load(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }", opset=9))

    with pytest.raises(
        ModelError, match=r"set 9 and could not be converted to 13 \(no adapter for Foo\)"
    ):
        normalize(model)


def test_a_conversion_that_did_not_happen_is_noticed(parse, monkeypatch) -> None:
    import onnx.version_converter

    monkeypatch.setattr(onnx.version_converter, "convert_version", lambda proto, _: proto)
    model = io.load(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }", opset=9))

    with pytest.raises(ModelError, match="from operator set 9 to 13 did not happen"):
        normalize(model)
