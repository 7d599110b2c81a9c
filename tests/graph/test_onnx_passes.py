from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from lowbit.errors import ModelError, VerificationError
from lowbit.graph import io
from lowbit.graph.onnx_passes import (
    check_file,
    check_like,
    infer_anew,
    infer_types,
    light_proto,
    require_opset,
)
from lowbit.normalize.normalize import LOWEST_OPSET, normalize


def test_weights_become_inputs_and_come_back(parse, floats) -> None:
    model = ir.from_proto(
        parse(
            "g (float[2,32] x) => (float[64] y) { m = MatMul(x, w) y = Reshape(m, shape) }",
            {"w": floats(32, 32), "shape": np.int64([64])},
        )
    )
    before = {name: value.const_value for name, value in model.graph.initializers.items()}

    with light_proto(model) as (proto, heavy):
        inputs = [value.name for value in proto.graph.input]
        kept = [tensor.name for tensor in proto.graph.initializer]

    assert (inputs, kept, list(heavy)) == (["x", "w"], ["shape"], ["w"])
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert {n: v.const_value for n, v in model.graph.initializers.items()} == before


def test_weights_come_back_after_a_failure(parse, floats) -> None:
    model = ir.from_proto(
        parse("g (float[2,32] x) => (float[2,32] y) { y = MatMul(x, w) }", {"w": floats(32, 32)})
    )

    with pytest.raises(RuntimeError), light_proto(model):
        raise RuntimeError

    assert list(model.graph.initializers) == ["w"]
    assert len(model.graph.inputs) == 1


PEAK = """
import resource, sys
from lowbit.graph import io
from lowbit.normalize.normalize import normalize
import onnx.shape_inference, onnx.version_converter, onnxruntime, numpy
path = sys.argv[1]
small = normalize(io.load(sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = normalize(io.load(path))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert model.graph.num_nodes() == 3 * int(sys.argv[3]), model.graph.num_nodes()
print((after - before) // 1024)
"""


def _write_layers(path: pathlib.Path, layers: int, opset: int) -> None:
    """Write a chain of 64 MB layers; the weights file is a hole, which takes no disk."""
    width = 4096
    size = 4 * width * width
    nodes, weights, last = [], [], "x"
    for index in range(layers):
        nodes += [
            helper.make_node("MatMul", [last, f"w{index}"], [f"m{index}"], name=f"n{index}"),
            helper.make_node("Clip", [f"m{index}"], [f"c{index}"], **_bounds(opset)),
            helper.make_node("Dropout", [f"c{index}"], [f"d{index}"]),
            helper.make_node("Relu", [f"d{index}"], [f"r{index}"]),
        ]
        weight = TensorProto(name=f"w{index}", data_type=1, dims=[width, width])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", index * size), ("length", size)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
        last = f"r{index}"
    info = [helper.make_tensor_value_info(name, 1, [1, width]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    path.parent.mkdir()
    with (path.parent / "w.bin").open("wb") as file:
        file.truncate(layers * size)
    opsets = [helper.make_opsetid("", opset)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=6).SerializeToString()
    )


def _bounds(opset: int) -> dict[str, float]:
    return {"min": 0.0, "max": 6.0} if opset < 11 else {}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
@pytest.mark.parametrize("opset", [10, 17], ids=["converted", "as it is"])
def test_a_model_of_three_gigabytes_is_normalized_without_reading_it(tmp_path, opset: int) -> None:
    _write_layers(tmp_path / "small" / "m.onnx", 1, opset)
    _write_layers(tmp_path / "large" / "m.onnx", 48, opset)
    paths = [str(tmp_path / kind / "m.onnx") for kind in ("large", "small")]

    done = subprocess.run(
        [sys.executable, "-c", PEAK, *paths, "48"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100, "megabytes above a small model's peak"


def test_types_and_shapes_are_written_to_values(parse, floats) -> None:
    model = ir.from_proto(
        parse(
            "g (float[n,64] x) => (int64[n,1] y) { h = MatMul(x, w) y = ArgMax<axis=1>(h) }",
            {"w": floats(64, 32)},
        )
    )

    infer_types(model)

    h, y = (node.outputs[0] for node in model.graph)
    assert (h.dtype, y.dtype) == (ir.DataType.FLOAT, ir.DataType.INT64)
    assert [str(d) for d in h.shape] == ["n", "32"]


def test_one_unknown_operator_does_not_hide_the_rest(parse, floats) -> None:
    model = ir.from_proto(
        parse(
            """g (float[2,4] x) => (float[2,4] y) {
              u = com.microsoft.BiasGelu(x, b)
              h = Relu(x)
              y = Add(u, h)
            }""",
            {"b": floats(4)},
        )
    )

    infer_types(model)

    assert [node.outputs[0].dtype for node in model.graph][:2] == [None, ir.DataType.FLOAT]


def test_a_shape_that_cannot_be_leaves_the_others_known(parse, floats) -> None:
    """Strict inference gave up on the whole graph, and said so only in a log."""
    model = ir.from_proto(
        parse(
            "g (float[2,4] x) => (float[a,b] y) { h = Relu(x) y = MatMul(h, w) }",
            {"w": floats(3, 3)},
        )
    )

    infer_types(model)

    assert model.graph[0].outputs[0].shape.numpy() == (2, 4)


def test_a_failure_is_an_error(parse, monkeypatch) -> None:
    import onnx.shape_inference

    def fail(*_arguments, **_options) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    model = ir.from_proto(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"))

    with pytest.raises(ModelError, match="types and shapes cannot be inferred: broken"):
        infer_types(model)


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


def test_a_good_file_passes(parse, tmp_path) -> None:
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path / "m.onnx")

    check_file(tmp_path / "m.onnx")


def test_a_file_that_is_not_sorted_is_refused(parse, tmp_path) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(h) h = Neg(x) }")
    onnx.save(model, tmp_path / "m.onnx")

    with pytest.raises(VerificationError, match=r"m.onnx is not valid ONNX: .*sorted"):
        check_file(tmp_path / "m.onnx")


def test_an_operator_without_kernel_is_refused(parse, tmp_path) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = com.microsoft.Nonsense(x) }")
    onnx.save(model, tmp_path / "m.onnx")

    with pytest.raises(VerificationError, match=r"cannot load .*Nonsense"):
        check_file(tmp_path / "m.onnx")


def test_shapes_that_contradict_the_operators_are_inferred_anew(parse, floats) -> None:
    model = io.load(
        parse(
            "g (float[N,4] x) => (float[3,9] y) { h = MatMul(x, w) y = Relu(h) }",
            {"w": floats(4, 5)},
        )
    )
    model.graph[0].outputs[0].shape = ir.Shape([7, 7])

    infer_anew(model)

    assert [list(node.outputs[0].shape) for node in model.graph] == [["N", 5], ["N", 5]]


def test_what_cannot_be_inferred_is_believed(parse) -> None:
    model = io.load(
        parse("g (float[4] x) => (float[k] y) { h = com.microsoft.Inverse(x) y = Relu(h) }")
    )
    model.graph[0].op_type = "Unknown"
    model.graph[0].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    model.graph[0].outputs[0].shape = ir.Shape([6])

    infer_anew(model)

    assert list(model.graph[1].outputs[0].shape) == [6]


def test_a_model_is_as_valid_as_the_one_it_was_made_from(parse) -> None:
    valid = io.load(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }"))
    shapeless = valid.clone()
    shapeless.graph.inputs[0].shape = None

    assert check_like(valid, valid) == ""
    assert "'shape'" in check_like(shapeless, shapeless)
    with pytest.raises(
        VerificationError, match=r"the quantized model is not valid ONNX: .*'shape'"
    ):
        check_like(shapeless, valid)
    broken = valid.clone()
    broken.graph[0].op_type = "NoSuchOperator"
    with pytest.raises(VerificationError, match="the quantized model") as raised:
        check_like(broken, broken)
    assert "lowbit-" not in str(raised.value)


def test_a_scan_that_meant_something_else_is_refused(parse) -> None:
    graph = """g (float[1,3,2] x) => (float[1,3,2] y) {
        y = Scan<num_scan_inputs=1, body = b (float[2] i) => (float[2] o) { o = Relu(i) }>("", x) }"""
    model = io.load(parse(graph, opset=8, ir_version=4))

    with pytest.raises(ModelError, match="has a Scan, which had another meaning before 9"):
        require_opset(model, 13)


def test_operators_that_onnxruntime_put_into_the_domain_of_onnx_survive_conversion(
    parse, floats, assert_same
) -> None:
    original = parse(
        """g (float[2,4] x) => (float[2,2] y) {
          n = SimplifiedLayerNormalization<axis=-1, epsilon=1e-5>(x, s)
          a, b = Split<axis=1>(n)
          y = Add(a, b)
        }""",
        {"s": floats(4)},
    )

    converted = require_opset(io.load(original), 21)

    assert [node.domain for node in converted.graph] == [""] * 3
    assert converted.opset_imports[""] == 21
    assert set(converted.opset_imports) <= {"", "com.microsoft"}
    assert_same(original, converted, {"x": floats(2, 4)})
