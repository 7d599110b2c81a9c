"""The command-line tools: what they write means what they say."""

from __future__ import annotations

import collections
import importlib
import pathlib

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.quark_cases import DATA, samples
from helpers.quark_helpers import run_python
from onnx import numpy_helper
from PIL import Image

from lowbit.quark.onnx.tools.table import TOOLS

ROOT = pathlib.Path(__file__).parents[2]
QUARKS = """
convert_a8w8_npu_to_a8w8_cpu convert_bias_int32_to_int16 convert_custom_ops convert_customqdq_to_qdq
convert_dynamic_to_fixed convert_fp16_to_bf16 convert_fp16_to_bfp16 convert_fp16_to_fp32
convert_fp32_to_bf16 convert_fp32_to_bfp16 convert_fp32_to_fp16 convert_lstm_to_customlstm
convert_nchw_to_nhwc convert_onnx_to_onnxtxt convert_onnxtxt_to_onnx convert_opset_version
convert_qdq_to_qop convert_quant_to_float convert_resize_fs_to_pof2s convert_s8s8_to_u8s8
convert_shared_initializer_to_unique convert_u16s8_to_s16s8 convert_u16u8_to_u8u8 evaluate
fix_shapes insert_clip_bfloat16_qdq print_a16w8_a8w8_nodes random_quantize remove_bf16_cast
remove_initializer_from_input remove_qdq remove_qdq_between_ops remove_qdq_mul_add
replace_bfloat16_qdq_cast replace_inf_weights save_tensor_hist save_weights_hist
""".split()


def _tool(name: str, *arguments: object) -> int:
    module = importlib.import_module(f"lowbit.quark.onnx.tools.{name}")
    return module.main([str(argument) for argument in arguments])


def _convert(name: str, source: object, folder: pathlib.Path, *more: str) -> onnx.ModelProto:
    out = folder / f"{name}.onnx"
    assert _tool(name, source, out, *more) == 0
    model = onnx.load(out)
    onnx.checker.check_model(model, full_check=True)
    return model


def _run(model: onnx.ModelProto) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return np.concatenate([session.run(None, feed)[0] for feed in samples("test_input.npz")])


def _golden(name: str) -> onnx.ModelProto:
    return onnx.load(DATA / f"{name}.onnx")


def _counts(model: onnx.ModelProto) -> collections.Counter:
    return collections.Counter(node.op_type for node in model.graph.node)


def _sqnr(want: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


def test_every_tool_of_quark_is_there() -> None:
    assert sorted(TOOLS) == sorted(QUARKS)
    assert len(QUARKS) == 37


@pytest.mark.parametrize("name", TOOLS)
def test_a_row_is_a_module_with_its_functions(name: str) -> None:
    module = importlib.import_module(f"lowbit.quark.onnx.tools.{name}")

    functions = {function.__name__: function for function in TOOLS[name].functions}
    assert module.__doc__ == TOOLS[name].summary
    assert module.__all__ == ["main", *functions]
    assert set(module.__all__) <= set(dir(module))
    assert {key: getattr(module, key) for key in functions} == functions


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_prints_help(name: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as exit_code:
        _tool(name, "--help")

    assert exit_code.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m quark.onnx.tools.{name}")


def test_every_tool_has_both_names(tmp_path: pathlib.Path) -> None:
    code = (
        "from importlib import import_module as get\n"
        f"for name in {QUARKS}:\n"
        "    a, b = (get(p + 'quark.onnx.tools.' + name) for p in ('', 'lowbit.'))\n"
        "    assert a is b and a.main.__module__ == a.__name__ == 'lowbit.quark.onnx.tools.' + name\n"
        "from quark.onnx.tools import evaluate\n"
        "from quark.onnx.tools.convert_s8s8_to_u8s8 import convert_s8s8_to_u8s8\n"
        "import quark.onnx.tools.nothing"
    )

    done = run_python("-c", code, cwd=tmp_path, more_path=str(ROOT / "drop-in/src"))

    last = done.stderr.splitlines()[-1]
    assert last == "ModuleNotFoundError: No module named 'quark.onnx.tools.nothing'"


def test_an_unknown_tool_is_no_module() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"onnx\.tools\.convert_nothing'"):
        importlib.import_module("lowbit.quark.onnx.tools.convert_nothing")


@pytest.mark.parametrize("name", TOOLS)
def test_a_wrong_option_is_said_and_is_no_success(name: str, capsys: pytest.CaptureFixture) -> None:
    assert _tool(name, "--input_modl", "x.onnx") != 0
    assert capsys.readouterr().err.startswith(f"{name}: error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["float.onnx", "out.onnx"],
        ["--input", "float.onnx", "--output", "out.onnx"],
        ["--input_model", "float.onnx", "--output_model", "out.onnx"],
        ["--input_model_path", "float.onnx", "--output_model_path", "out.onnx"],
        ["float.onnx", "--output", "out.onnx"],
    ],
)
def test_files_are_given_in_any_spelling(
    arguments: list, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(_golden("float"), "float.onnx")

    assert _tool("remove_initializer_from_input", *arguments) == 0
    assert _run(onnx.load("out.onnx")).shape == (4, 10)


@pytest.mark.parametrize("arguments", [["a"], ["a", "b", "c"], []])
def test_too_few_and_too_many_words(arguments: list, capsys: pytest.CaptureFixture) -> None:
    assert _tool("remove_qdq", *arguments) == 2
    assert "missing" in (error := capsys.readouterr().err) or "unrecognized" in error


def test_both_ways_of_calling_from_a_shell(tmp_path: pathlib.Path) -> None:
    arguments = ("print_a16w8_a8w8_nodes", str(DATA / "a8w8_default.onnx"))
    plain = run_python("-m", f"lowbit.quark.onnx.tools.{arguments[0]}", arguments[1], cwd=tmp_path)
    dropped = run_python(
        "-m",
        f"quark.onnx.tools.{arguments[0]}.py",
        "--input",
        arguments[1],
        cwd=tmp_path,
        more_path=str(ROOT / "drop-in/src"),
    )

    assert plain.stderr == dropped.stderr == ""
    assert plain.stdout == dropped.stdout
    assert "int8 activation node count: 7" in plain.stdout
    assert "int16 activation node count: 0" in plain.stdout


def test_signed_activations_become_unsigned_and_mean_the_same(tmp_path: pathlib.Path) -> None:
    model = _convert("convert_s8s8_to_u8s8", DATA / "a8w8_qconfig.onnx", tmp_path)

    zeros = [numpy_helper.to_array(t) for t in model.graph.initializer if "zero" in t.name]
    assert any(z.dtype == np.uint8 and z == 128 for z in zeros if z.ndim == 0)
    # One code more below zero: what was clipped at -127 steps may now reach -128.
    np.testing.assert_allclose(_run(model), _run(_golden("a8w8_qconfig")), atol=0.2)


def test_unsigned_words_become_signed_or_bytes(tmp_path: pathlib.Path) -> None:
    _tool(
        "random_quantize",
        DATA / "float.onnx",
        tmp_path / "u16.onnx",
        "--config",
        "U16S8_AAWS",
    )
    wide = onnx.load(tmp_path / "u16.onnx")

    narrow = _convert("convert_u16u8_to_u8u8", tmp_path / "u16.onnx", tmp_path)
    same = _convert("convert_u16s8_to_s16s8", tmp_path / "u16.onnx", tmp_path)

    types = {t.data_type for t in narrow.graph.initializer}
    assert onnx.TensorProto.UINT16 not in types
    assert onnx.TensorProto.UINT8 in types
    assert 10 < _sqnr(_run(wide), _run(narrow)) < 60
    np.testing.assert_allclose(_run(same), _run(wide), rtol=1e-4, atol=1e-3)


def test_byte_biases_become_words_of_the_accumulator(tmp_path: pathlib.Path) -> None:
    model = _convert("convert_a8w8_npu_to_a8w8_cpu", DATA / "xint8_nocle.onnx", tmp_path)

    stored = {t.name: t for t in model.graph.initializer}
    readers = {n.output[0]: n for n in model.graph.node if n.op_type == "DequantizeLinear"}
    layers = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm")]
    for layer in layers:
        scales = [numpy_helper.to_array(stored[readers[i].input[1]]) for i in layer.input]
        assert stored[readers[layer.input[2]].input[0]].data_type == onnx.TensorProto.INT32
        np.testing.assert_allclose(scales[2], scales[0] * scales[1], rtol=1e-6)
    # The accumulator's scale may be coarser than the bias's own was.
    assert _sqnr(_run(_golden("xint8_nocle")), _run(model)) > 25


def test_word_biases_are_clipped(tmp_path: pathlib.Path) -> None:
    model = _convert("convert_bias_int32_to_int16", DATA / "int8_cnn_default_nocle.onnx", tmp_path)

    assert [o.version for o in model.opset_import if not o.domain] == [21]
    before = {
        t.name: numpy_helper.to_array(t)
        for t in _golden("int8_cnn_default_nocle").graph.initializer
        if t.data_type == onnx.TensorProto.INT32 and t.dims
    }
    after = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT16]
    assert len([t for t in after if list(t.dims) not in ([], [1])]) == len(before) - sum(
        array.shape == (1,) for array in before.values()
    )
    assert not any(t.data_type == onnx.TensorProto.INT32 for t in model.graph.initializer)


@pytest.mark.parametrize("tool", ["remove_qdq", "convert_quant_to_float"])
def test_what_is_left_without_pairs_is_the_float_network(tool: str, tmp_path: pathlib.Path) -> None:
    model = _convert(tool, DATA / "a8w8_nocle.onnx", tmp_path)

    assert not {"QuantizeLinear", "DequantizeLinear"} & set(_counts(model))
    assert [o.name for o in model.graph.output] == ["output"]
    assert _sqnr(_run(_golden("float")), _run(model)) > 25


def test_pairs_between_operators_are_taken_out(tmp_path: pathlib.Path) -> None:
    source = _golden("xint8_nocle")

    model = _convert(
        "remove_qdq_between_ops", DATA / "xint8_nocle.onnx", tmp_path, "--between_ops", "Clip,Conv"
    )
    nothing = _convert("remove_qdq_mul_add", DATA / "xint8_nocle.onnx", tmp_path)

    assert _counts(source)["QuantizeLinear"] - _counts(model)["QuantizeLinear"] == 1
    np.testing.assert_array_equal(_run(nothing), _run(source))


def test_operators_are_renamed_and_back_with_their_functions(tmp_path: pathlib.Path) -> None:
    assert (
        _tool(
            "convert_fp32_to_bf16",
            DATA / "float.onnx",
            tmp_path / "bf16.onnx",
            "--format",
            "customqdq",
        )
        == 0
    )
    bf16 = onnx.load(tmp_path / "bf16.onnx")

    older = _convert("convert_custom_ops", tmp_path / "bf16.onnx", tmp_path)
    onnx.save(older, tmp_path / "older.onnx")
    again = _convert(
        "convert_custom_ops", tmp_path / "older.onnx", tmp_path, "--reverse_conversion", "True"
    )

    assert {n.domain for n in older.graph.node} == {"", "com.vai.quantize"}
    np.testing.assert_array_equal(_run(older), _run(bf16))
    assert _counts(again) == _counts(bf16)


def test_bfloat16_in_four_ways(tmp_path: pathlib.Path) -> None:
    made = {}
    for form in ("with_cast", "customqdq", "simulate_bf16", "bf16"):
        made[form] = _convert(
            "convert_fp32_to_bf16", DATA / "float.onnx", tmp_path, "--format", form
        )

    want = _run(_golden("float"))
    assert all(_sqnr(want, _run(model)) > 35 for model in made.values())
    np.testing.assert_array_equal(_run(made["with_cast"]), _run(made["customqdq"]))
    assert _counts(made["simulate_bf16"])["Cast"] == 2
    sizes = {form: model.ByteSize() for form, model in made.items()}
    assert sizes["bf16"] < 0.75 * sizes["with_cast"]


def test_blocks_with_a_common_exponent(tmp_path: pathlib.Path) -> None:
    model = _convert("convert_fp32_to_bfp16", DATA / "float.onnx", tmp_path)
    half = _convert("convert_fp32_to_fp16", DATA / "float.onnx", tmp_path)
    onnx.save(half, tmp_path / "half.onnx")
    assert _tool("convert_fp16_to_bfp16", tmp_path / "half.onnx", tmp_path / "out.onnx") == 0

    assert _counts(model)["BFPQuantizeDequantize"] > 10
    assert _sqnr(_run(_golden("float")), _run(model)) > 25
    assert _counts(onnx.load(tmp_path / "out.onnx"))["BFPQuantizeDequantize"] > 10


def test_quarks_pairs_of_bfloat16_become_casts_and_get_clips(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "bf16.onnx"
    _tool("convert_fp32_to_bf16", DATA / "float.onnx", source, "--format", "customqdq")
    bf16 = onnx.load(source)

    casts = _convert("replace_bfloat16_qdq_cast", source, tmp_path)
    clips = _convert("insert_clip_bfloat16_qdq", source, tmp_path)
    kept = _convert("convert_customqdq_to_qdq", source, tmp_path)

    assert "ExtendedQuantizeLinear" not in _counts(casts)
    np.testing.assert_array_equal(_run(casts), _run(bf16))
    np.testing.assert_array_equal(_run(clips), _run(bf16))
    assert _counts(clips)["Clip"] > _counts(bf16)["Clip"]
    assert _counts(kept) == _counts(bf16)


def test_half_precision_there_and_back(tmp_path: pathlib.Path) -> None:
    half = _convert("convert_fp32_to_fp16", DATA / "float.onnx", tmp_path)
    onnx.save(half, tmp_path / "half.onnx")

    single = _convert("convert_fp16_to_fp32", tmp_path / "half.onnx", tmp_path)

    assert half.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    ends = [*single.graph.input, *single.graph.output]
    assert {v.type.tensor_type.elem_type for v in ends} == {onnx.TensorProto.FLOAT}
    assert _sqnr(_run(_golden("float")), _run(single)) > 40


def test_integer_operators(tmp_path: pathlib.Path) -> None:
    model = _convert("convert_qdq_to_qop", DATA / "u8s8_aaws_nocle.onnx", tmp_path)

    assert _counts(model)["QLinearConv"] >= 5


def test_layout_shapes_and_operator_set(tmp_path: pathlib.Path) -> None:
    last = _convert("convert_nchw_to_nhwc", DATA / "float.onnx", tmp_path)
    fixed = _convert(
        "convert_dynamic_to_fixed",
        DATA / "float.onnx",
        tmp_path,
        "--fix_shapes",
        "input:[2,3,14,14]",
    )
    known = _convert("fix_shapes", DATA / "float.onnx", tmp_path)
    out = tmp_path / "newer.onnx"
    assert _tool("convert_opset_version", DATA / "float.onnx", "18", out) == 0

    def dims(value: onnx.ValueInfoProto) -> list[int]:
        return [d.dim_value for d in value.type.tensor_type.shape.dim]

    assert dims(last.graph.input[0]) == [1, 14, 14, 3]
    assert dims(fixed.graph.input[0])[0] == 2
    assert {v.name for v in known.graph.value_info} >= {"conv1_out", "gap_out"}
    assert [o.version for o in onnx.load(out).opset_import if not o.domain] == [18]
    np.testing.assert_allclose(_run(onnx.load(out)), _run(_golden("float")), rtol=1e-5, atol=1e-5)


def test_power_of_two_scales_around_resize(tmp_path: pathlib.Path) -> None:
    model = _convert("convert_resize_fs_to_pof2s", DATA / "ops_a8w8_nocle.onnx", tmp_path)

    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    producers = {n.output[0]: n for n in model.graph.node if n.output}
    (resize,) = [n for n in model.graph.node if n.op_type == "Resize"]
    scale = float(stored[producers[resize.input[0]].input[1]])
    assert np.log2(scale) == round(np.log2(scale))


def test_text_and_back(tmp_path: pathlib.Path) -> None:
    text, out = tmp_path / "model.txt", tmp_path / "again.onnx"

    assert _tool("convert_onnx_to_onnxtxt", DATA / "float.onnx", text) == 0
    assert _tool("convert_onnxtxt_to_onnx", text, out) == 0

    assert 'op_type: "Conv"' in text.read_text()
    np.testing.assert_array_equal(_run(onnx.load(out)), _run(_golden("float")))
    text.write_text("not a model")
    assert _tool("convert_onnxtxt_to_onnx", text, out) == 2


def test_constants_are_made_finite_and_unshared(tmp_path: pathlib.Path) -> None:
    graph = onnx.parser.parse_graph(
        "g (float[2] x) => (float[2] y, float[2] z) "
        "<float[2] w = {1.0, 2.0}> { y = Add(x, w) z = Mul(x, w) }"
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    infinite = np.array([np.inf, -np.inf], np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(infinite, "w"))
    onnx.save(model, tmp_path / "in.onnx")

    finite = _convert(
        "replace_inf_weights", tmp_path / "in.onnx", tmp_path, "--replace_inf_value", "5"
    )
    own = _convert("convert_shared_initializer_to_unique", tmp_path / "in.onnx", tmp_path)

    np.testing.assert_array_equal(numpy_helper.to_array(finite.graph.initializer[0]), [5, -5])
    assert len(own.graph.initializer) == 2
    assert own.graph.node[0].input[1] != own.graph.node[1].input[1]


def test_histograms_are_images_and_tables(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for index, feed in enumerate(samples("test_input.npz")):
        np.save(data / f"{index}.npy", feed["input"])

    assert _tool("save_weights_hist", DATA / "float.onnx", tmp_path / "w") == 0
    assert _tool("save_tensor_hist", DATA / "float.onnx", data, tmp_path / "t") == 0

    (table,) = (tmp_path / "t").glob("output.csv")
    counts = np.loadtxt(table, delimiter=",", skiprows=1)[:, 2]
    assert counts.sum() == 4 * 10
    assert len(list((tmp_path / "w").glob("*.csv"))) >= 7
    weights = {path.stem for path in (tmp_path / "w").glob("*.png")}
    assert weights == {path.stem for path in (tmp_path / "w").glob("*.csv")}
    with Image.open(table.with_suffix(".png")) as image:
        pixels = np.asarray(image.convert("RGB"))
    # Bars are blue; the highest reaches from the axis to the top margin.
    blue = (pixels == (31, 119, 180)).all(axis=-1)
    assert blue.sum(axis=0).max() == pytest.approx(pixels.shape[0] - 80, abs=2)
    assert not blue[:39].any()


def test_random_quantization_excludes(tmp_path: pathlib.Path) -> None:
    model = _convert(
        "random_quantize",
        DATA / "float.onnx",
        tmp_path,
        "--exclude_nodes",
        "fc",
        "--exclude_subgraphs",
        "[conv1],[conv1]",
    )

    quantized = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    layers = {n.name: n for n in model.graph.node if n.op_type in ("Conv", "Gemm")}
    assert layers["fc"].input[1] not in quantized
    assert layers["conv1"].input[1] not in quantized
    assert layers["conv2"].input[1] in quantized


def test_evaluation_has_quarks_lines(tmp_path: pathlib.Path, capsys) -> None:
    for folder, shift in (("a", 0.0), ("b", 0.1)):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "0.npy", np.arange(24.0).reshape(1, 2, 3, 4) + shift)

    assert _tool("evaluate", tmp_path / "a", "--quantized_results_folder", tmp_path / "b") == 0

    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert float(lines["Mean l2 distance"]) == pytest.approx(0.1 * 24**0.5, rel=1e-5)
    assert float(lines["Mean psnr"]) == pytest.approx(20 * np.log10(23) + 20, rel=1e-4)
    assert float(lines["Max l2 distance"]) == float(lines["Mean l2 distance"])


@pytest.mark.parametrize("case", ["bf16_nocle", "bfp16_nocle", "mxint8_nocle"])
def test_models_that_quark_wrote_come_back_to_float(case: str, tmp_path: pathlib.Path) -> None:
    model = _convert("convert_quant_to_float", DATA / f"{case}.onnx", tmp_path)

    assert not any(node.domain for node in model.graph.node)
    assert {node.op_type for node in model.graph.node} == {
        *("Conv", "Relu", "Clip", "Add", "Concat", "GlobalAveragePool", "Flatten", "Gemm")
    }
