"""Float formats into each other, without data."""

from __future__ import annotations

import pathlib
import tracemalloc

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds
from onnx import numpy_helper

import lowbit
from lowbit.api.convert import FORMATS, INTEGER_IO
from lowbit.cli.options import FLOAT_FORMATS
from lowbit.config.specs import BLOCKS
from lowbit.errors import ConfigError, ModelError, OutputError, PlanError
from lowbit.graph import io
from lowbit.numerics.formats import FloatFormat, rounded
from lowbit.scales.formats import rounded_values


def _run(model: onnx.ModelProto | pathlib.Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    source = str(model) if isinstance(model, pathlib.Path) else model.SerializeToString()
    return ort.InferenceSession(source).run(None, feed)[0]


def _half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the classifier in float16, inputs and outputs too."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    for tensor in half.graph.initializer:
        data = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(data, tensor.name))
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return half


def test_the_command_line_offers_every_format() -> None:
    assert FLOAT_FORMATS == FORMATS


@pytest.mark.parametrize("to", [name for name in FORMATS if name != INTEGER_IO])
@pytest.mark.parametrize("half", [False, True])
def test_every_format_from_float32_and_float16(to: str, half: bool, tmp_path) -> None:
    model = _half(small_cnn()) if half else small_cnn()
    feed = small_feeds(1)[0]
    want = _run(small_cnn(), feed)

    lowbit.convert(model, tmp_path / "out.onnx", to=to)

    written = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(written, full_check=True)
    kept = half and to != "fp32"
    feed = {"input": feed["input"].astype(np.float16)} if kept else feed
    got = _run(tmp_path / "out.onnx", feed)
    assert got.dtype == (np.float16 if kept else np.float32)
    lowest = 5 if "4" in to and "m3" not in to else 15
    assert 10 * np.log10((want**2).sum() / (((want - got) ** 2).sum() + 1e-30)) > lowest


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("half_weights", [False, True])
@pytest.mark.parametrize("to", ["bf16", "fp16", "bfp16", "mx6", "mxint8", "mxfp8e4m3"])
def test_the_way_back_leaves_rounded_weights_and_nothing_else(
    to: str, half_weights: bool, casts: bool
) -> None:
    low = lowbit.convert(small_cnn(), to=to, casts=casts, half_weights=half_weights)

    back = io.to_proto(lowbit.convert(low, to="fp32"))

    onnx.checker.check_model(back, full_check=True)
    assert not back.functions
    assert {node.domain for node in back.graph.node} <= {""}
    assert "Cast" not in {node.op_type for node in back.graph.node}
    (gemm,) = (node for node in back.graph.node if node.op_type == "Gemm")
    stored = {t.name: numpy_helper.to_array(t) for t in back.graph.initializer}
    original = next(
        numpy_helper.to_array(t) for t in small_cnn().graph.initializer if t.name == "w3"
    )
    if to in ("bf16", "fp16"):
        fmt = FloatFormat.BFLOAT16 if to == "bf16" else FloatFormat.FLOAT16
        expected = rounded(original, fmt)
    else:
        expected = rounded_values(original, BLOCKS[to.upper()], 1)
    np.testing.assert_array_equal(stored[gemm.input[1]], expected)
    feed = small_feeds(1)[0]
    np.testing.assert_allclose(_run(back, feed), _run(io.to_proto(low), feed), atol=0.3)


def test_weights_take_half_the_space(tmp_path) -> None:
    sizes = {}
    for half_weights in (False, True):
        path = tmp_path / f"{half_weights}.onnx"
        lowbit.convert(small_cnn(), path, to="bf16", half_weights=half_weights)
        sizes[half_weights] = sum(len(t.raw_data) for t in onnx.load(path).graph.initializer)

    assert sizes[True] < 0.55 * sizes[False]


def test_weights_outside_the_file_stay_outside(tmp_path) -> None:
    onnx.save(small_cnn(), tmp_path / "in.onnx", save_as_external_data=True, size_threshold=64)

    lowbit.convert(tmp_path / "in.onnx", tmp_path / "out.onnx", to="bf16")

    assert (tmp_path / "out.onnx.data").exists()
    feed = small_feeds(1)[0]
    inside = lowbit.convert(small_cnn(), to="bf16")
    np.testing.assert_array_equal(
        _run(tmp_path / "out.onnx", feed), _run(io.to_proto(inside), feed)
    )


@pytest.mark.parametrize("to", ["bf16", "bfp16"])
def test_memory_is_that_of_a_few_tensors_not_of_all(to: str, tmp_path) -> None:
    count, size = 16, 512  # 16 weights of 1 MB
    weights = np.random.default_rng(0).normal(size=(count, size, size)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(count)],
        "chain",
        [onnx.helper.make_tensor_value_info("h0", onnx.TensorProto.FLOAT, ["N", size])],
        [onnx.helper.make_tensor_value_info(f"h{count}", onnx.TensorProto.FLOAT, ["N", size])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True)
    del model, graph
    lowbit.convert(tmp_path / "in.onnx", tmp_path / "out.onnx", to=to)  # imports are done now

    tracemalloc.start()
    lowbit.convert(tmp_path / "in.onnx", tmp_path / "out.onnx", to=to)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 9 * weights[0].nbytes


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown format 'bf61'; did you mean 'bf16'"):
        lowbit.convert(small_cnn(), to="bf61")


def test_a_folder_that_does_not_exist_is_said_before_the_model_is_read(tmp_path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        lowbit.convert(tmp_path / "no.onnx", tmp_path / "none" / "out.onnx", to="bf16")


def test_a_quantized_model_is_no_float_model() -> None:
    quantized = lowbit.quantize(small_cnn(), data=small_feeds(2), preset="A8W8").quantized

    with pytest.raises(ModelError, match="already quantized"):
        lowbit.convert(quantized, to="bf16")


@pytest.mark.parametrize("to", ["bf16", "mx6"])
def test_what_is_written_says_how_it_was_made(to: str, tmp_path) -> None:
    lowbit.convert(small_cnn(), tmp_path / "out.onnx", to=to)

    written = onnx.load(tmp_path / "out.onnx")
    metadata = {p.key: p.value for p in written.metadata_props}
    assert (written.producer_name, written.producer_version) == ("lowbit", lowbit.__version__)
    assert metadata["lowbit.preset"] == to.upper()
    # Nothing was calibrated, so no data is named.
    assert "lowbit.data" not in metadata


def test_the_model_that_is_given_is_not_changed() -> None:
    model = io.load(small_cnn())
    before = io.to_proto(model).SerializeToString()

    lowbit.convert(model, to="fp16")

    assert io.to_proto(model).SerializeToString() == before


def test_casts_or_named_operators() -> None:
    def operators(**options) -> set[tuple[str, str]]:
        model = lowbit.convert(small_cnn(), to="bf16", **options)
        return {(node.domain, node.op_type) for node in model.graph}

    assert ("", "Cast") in operators()
    assert all(domain == "" for domain, _ in operators())
    assert ("com.amd.quark", "ExtendedQuantizeLinear") in operators(casts=False)


def test_a_model_with_nothing_to_convert_is_refused() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (int64[3] x) => (int64[3] y) { y = Neg(x) }'

    with pytest.raises(PlanError, match="nothing would be quantized"):
        lowbit.convert(onnx.parser.parse_model(text), to="bf16")
