"""Signal and noise of outputs and of inner tensors, over samples."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.errors import ModelError, VerificationError
from lowbit.evaluate.compare_models import (
    Reference,
    compare_outputs,
    compare_tensors,
    output_reference,
    spread,
)
from lowbit.graph import io


def shifted(model: ir.Model) -> ir.Model:
    """Return a model whose outputs are all 0.5 higher."""
    other = model.clone()
    bias = other.graph.initializers["b3"]
    bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32(0.5), name="b3")
    return other


def test_a_model_equals_itself() -> None:
    model = io.load(small_cnn())

    (outputs,) = compare_tensors([output_reference(model, model)], model, small_feeds(3))

    # One side runs optimized, so equal means equal to rounding.
    assert outputs["logits"].sqnr_db > 100


def test_noise_of_a_known_size_is_measured() -> None:
    model = io.load(small_cnn())
    other = shifted(model)

    (outputs,) = compare_tensors([output_reference(model, other)], other, small_feeds(4))

    assert outputs["logits"].max_error == pytest.approx(0.5, rel=1e-4)
    assert outputs["logits"].noise == pytest.approx(4 * 5 * 0.25, rel=1e-4)


def test_a_model_of_other_outputs_is_refused() -> None:
    model = io.load(small_cnn())
    other = model.clone()
    other.graph.outputs[0].name = "scores"

    with pytest.raises(ModelError, match=r"no output 'logits' \(it has scores\)"):
        output_reference(model, other)


def test_inner_tensors_are_measured_under_the_names_of_the_float_model() -> None:
    model, feeds = io.load(small_cnn()), small_feeds(2)
    reference = Reference(model, {"r1": "a1"})

    outputs, layers, nothing = compare_tensors(
        [output_reference(model, model), reference, Reference(model, {})], model, feeds
    )

    proto = small_cnn()
    proto.graph.output.extend(
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("r1", "a1")
    )
    session = ort.InferenceSession(proto.SerializeToString())
    relu, added = map(
        np.stack, zip(*(session.run(["r1", "a1"], feed) for feed in feeds), strict=True)
    )
    assert (set(outputs), set(layers), nothing) == ({"logits"}, {"r1"}, {})
    assert layers["r1"].noise == pytest.approx(np.square(relu - added).sum(), rel=1e-3)
    assert layers["r1"].signal == pytest.approx(np.square(relu).sum(), rel=1e-3)
    assert layers["r1"].largest == pytest.approx(relu.max(), rel=1e-6)


def test_of_no_tensors_there_is_nothing_to_run() -> None:
    model = io.load(small_cnn())

    def untouchable():
        raise AssertionError("a sample was read")
        yield

    assert compare_tensors([Reference(model, {})], model, untouchable()) == [{}]


def test_the_largest_is_that_of_all_values_though_large_tensors_are_subsampled() -> None:
    text = "g (float[1,1,512,512] x) => (float[1,1,512,512] y) { z = Identity(x) y = Identity(z) }"
    header = '<ir_version: 8, opset_import: ["": 17]>'
    model = io.load(onnx.parser.parse_model(f"{header}\n{text}"))
    x = np.zeros((1, 1, 512, 512), np.float32)
    x[0, 0, 511, 3] = -77

    (layers,) = compare_tensors([Reference(model, {"z": "x"})], model, [{"x": x}])

    assert layers["z"].largest == 77
    assert layers["z"].signal == 0  # its row is none of those taken


def test_many_samples_are_run_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = io.load(small_cnn())
    other = shifted(model)
    reference = output_reference(model, other)
    at_once = compare_tensors([reference], other, small_feeds(7))
    monkeypatch.setattr("lowbit.evaluate.runner._MEMORY_FOR_SAMPLES", 1)
    monkeypatch.setattr("lowbit.parallel.cpu_count", lambda: 1)

    one_by_one = compare_tensors([reference], other, small_feeds(7))

    assert one_by_one == at_once


# Outputs of whole models


def test_every_sample_is_run_and_some_are_kept_and_fused() -> None:
    model, feeds = io.load(small_cnn()), small_feeds(6)
    told = []

    found = compare_outputs(
        model,
        shifted(model),
        ["logits"],
        feeds,
        fused=frozenset({1, 4}),
        keep=frozenset({0, 5}),
        listener=lambda want, got, fused: told.append((want, got, fused)),
    )

    session = ort.InferenceSession(small_cnn().SerializeToString())
    want = [session.run(None, feed)[0] for feed in feeds]
    assert found.count == len(told) == 6
    assert [fused is not None for _, _, fused in told] == [i in {1, 4} for i in range(6)]
    for expected, (float_outputs, quantized, _) in zip(want, told, strict=True):
        np.testing.assert_allclose(float_outputs["logits"], expected, atol=1e-4)
        np.testing.assert_allclose(quantized["logits"], expected + 0.5, atol=1e-4)
    first, last = found.samples
    np.testing.assert_array_equal(first.feed["input"], feeds[0]["input"])
    np.testing.assert_array_equal(last.feed["input"], feeds[5]["input"])
    np.testing.assert_allclose(last.outputs["logits"], want[5], atol=1e-4)
    assert found.outputs["logits"].noise == pytest.approx(6 * 5 * 0.25, rel=1e-3)
    assert found.fused["logits"].noise == pytest.approx(2 * 5 * 0.25, rel=1e-3)
    assert found.exact["logits"].signal == found.fused["logits"].signal
    # An output of one kind has no slices to tell.
    assert (len(found.slices), found.sliced) == (1, {})


def test_slices_of_an_output_that_mixes_sizes_are_measured() -> None:
    text = """g (float[1,4,9] x) => (float[1,4,9] y)
      <float[1,4,1] f = {100, 100, 0.1, 0.1}, float[1,4,1] e = {E}> { m = Mul(x, f) y = Add(m, e) }"""
    models = [
        io.load(
            onnx.parser.parse_model(
                f'<ir_version: 8, opset_import: ["": 17]>\n{text.replace("E", error)}'
            )
        )
        for error in ("0, 0, 0, 0", "0, 0, 0.1, 0.1")
    ]
    feeds = [{"x": np.ones((1, 4, 9), np.float32)}] * 2

    found = compare_outputs(
        *models,
        ["y"],
        feeds,
        fused=frozenset(),
        keep=frozenset(),
        listener=lambda *_: None,
    )

    assert found.outputs["y"].sqnr_db > 55
    assert found.sliced["y[:, 0:2]"].noise == 0
    assert found.sliced["y[:, 2:4]"].sqnr_db == pytest.approx(0, abs=1e-3)
    assert (found.fused, found.exact, found.samples) == ({}, {}, ())


def made(graph: str) -> ir.Model:
    header = '<ir_version: 8, opset_import: ["": 17]>'
    return io.load(onnx.parser.parse_model(f"{header}\n{graph}"))


PLAIN = "g (float[1,4] x) => (float[1,4] y) { y = Identity(x) }"


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        ("g (float[1,4] x) => (float[4,1] y) { y = Transpose<perm=[1,0]>(x) }", r"shape \[1, 4\]"),
        ("g (float[1,4] x) => (float[1,4] y) { y = Sqrt(x) }", "1 of 4 values are NaN or Inf"),
    ],
)
def test_outputs_of_another_function_are_refused(graph: str, problem: str) -> None:
    feeds = [{"x": np.array([[1, 2, -3, 4]], np.float32)}]
    one, other = made(PLAIN), made(graph)

    with pytest.raises(VerificationError, match=f"output 'y' .*{problem}"):
        compare_outputs(
            one,
            other,
            ["y"],
            feeds,
            fused=frozenset(),
            keep=frozenset({0}),
            listener=lambda *_: None,
        )
    with pytest.raises(VerificationError, match=f"output 'y' .*{problem}"):
        compare_tensors([output_reference(one, other)], other, feeds)


def test_outputs_of_another_type_are_refused_of_a_quantized_model_alone() -> None:
    feeds = [{"x": np.array([[1, 2, -3, 4]], np.float32)}]
    other = made("g (float[1,4] x) => (float16[1,4] y) { y = Cast<to=10>(x) }")

    with pytest.raises(VerificationError, match=r"'y' is of type float32 .* and float16 in"):
        compare_tensors([output_reference(made(PLAIN), other)], other, feeds)
    found = compare_outputs(
        made(PLAIN),
        other,
        ["y"],
        feeds,
        fused=frozenset(),
        keep=frozenset(),
        listener=lambda *_: None,
    )
    assert found.outputs["y"].sqnr_db > 60


def test_sequences_are_compared_array_by_array() -> None:
    graph = "g (float[2,4] x) => (seq(float[2,2]) y) { h = Mul(x, c) y = SplitToSequence<axis=1>(h, n) }"
    one, other = (
        made(graph.replace(") {", f") <float c={{{c}}}, int64 n={{2}}> {{")) for c in (1.0, 1.1)
    )
    feeds = [{"x": np.ones((2, 4), np.float32)}]

    (found,) = compare_tensors([output_reference(one, other)], other, feeds)

    assert {name: round(row.sqnr_db, 3) for name, row in found.items()} == {
        "y[0 of 2]": 20.0,
        "y[1 of 2]": 20.0,
    }


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [
        (8, 2, {2, 5}),
        (12, 4, {2, 4, 7, 9}),
        (3, 3, {0, 1, 2}),
        (2, 8, {0, 1}),
        (5, 1, {2}),
        (0, 4, set()),
    ],
)
def test_some_samples_are_spread_evenly(total, count, expected) -> None:
    assert spread(total, count) == expected


def test_a_run_of_quantize_and_a_comparison_tell_the_same() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(6), verify=3)
    reference = output_reference(io.load(small_cnn()), result.quantized)

    (outputs,) = compare_tensors([reference], result.quantized, result.samples.verification())

    assert outputs["logits"].sqnr_db == pytest.approx(result.report.sqnr_db, abs=1e-6)
