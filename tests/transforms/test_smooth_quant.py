"""SmoothQuant of whole graphs: the function stays, and factors go where they can be taken."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from helpers.attention_models import TOKENS, WIDTH, Network, feeds
from helpers.chains import chain, node

import lowbit
from lowbit.config.presets import PRESETS
from lowbit.config.transforms import SmoothQuant
from lowbit.errors import ConfigError
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize
from lowbit.transforms.implementation import Context, Levels, TransformedModel
from lowbit.transforms.layers import find_layer
from lowbit.transforms.smooth_quant import (
    ALPHAS,
    Consumed,
    Smooth,
    best_alpha,
    output_noise,
    smooth_factors,
)
from lowbit.transforms.smooth_sites import Produced, find_sites

# Channels of very unlike sizes, as after the normalizations of transformers.
_UNEVEN = np.exp(np.linspace(-3, 3, 8)).astype(np.float32)
_CONSTANTS = {
    "gamma": _UNEVEN, "beta": _UNEVEN[::-1].copy(), "half": np.float32(0.5), "w": (8, 6),
    "v": (8, 4), "u": (6, 8), "slope": np.float32([0.1]), "zero": np.float32(0),
    "four": np.float32(4), "axes": [-1],
}  # fmt: skip


def smooth(model: ir.Model, config: SmoothQuant, data: Iterable) -> TransformedModel:
    return Smooth().apply(model, config, Context(data=data))


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def check_same(model: ir.Model, result: TransformedModel, tolerance: float = 1e-5) -> None:
    with session(model) as before, session(result.model) as after:
        for feed in samples():
            want, got = before.run(["y"], feed)[0], after.run(["y"], feed)[0]
            np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * abs(want).max())


def inputs_of(model: ir.Model, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges of what a layer reads and of its weights, by channel."""
    layer = find_layer(next(n for n in model.graph if n.outputs[0].name == name))
    with session(model, [layer.source]) as running:
        found = [running.run([layer.source], feed)[0].reshape(-1, 8) for feed in samples()]
    return np.abs(np.concatenate(found)).max(axis=0), np.abs(layer.kernel).max(axis=(0, 1, 3))


def written_out(start: str = "x", end: str = "n") -> list[onnx.NodeProto]:
    """Return a layer normalization as exporters of old write it."""
    return [
        node("ReduceMean", start, "mean", axes=[-1]), node("Sub", f"{start} mean", "d"),
        node("Mul", "d d", "d2"), node("ReduceMean", "d2", "var", axes=[-1]),
        node("Sqrt", "var", "sd"), node("Div", "d sd", "unit"), node("Mul", "unit gamma", "scaled"),
        node("Add", "scaled beta", end),
    ]  # fmt: skip


def gelu(start: str, end: str) -> list[onnx.NodeProto]:
    return [
        node("Erf", start, "erf"), node("Add", "erf four", "more"),
        node("Mul", f"{start} more", "product"), node("Mul", "product half", end),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "producer"),
    [
        ([node("LayerNormalization", "x gamma beta", "n")], "LayerNormalization"),
        ([node("LayerNormalization", "x gamma", "n")], "LayerNormalization"),
        (written_out(), "Mul"),
        (gelu("x", "n"), "Mul"),
        ([node("Div", "x gamma", "n")], "Div"),
        ([node("Mul", "x gamma", "a"), node("LeakyRelu", "a", "n", alpha=0.3)], "Mul"),
        ([node("Mul", "x gamma", "a"), node("Clip", "a zero", "n")], "Mul"),
        ([node("Mul", "x gamma", "a"), node("Sub", "half a", "n")], "Mul"),
    ],
)
def test_producers_take_the_factor(before: list[onnx.NodeProto], producer: str) -> None:
    model = chain(*before, node("MatMul", "n w", "y"), **_CONSTANTS)

    (site,) = find_sites(model.graph)
    result = smooth(model, SmoothQuant(alpha=0.5), samples())

    assert site.factors[0].node.op_type == producer
    assert len(list(result.model.graph)) == len(list(model.graph))
    check_same(model, result)
    x, w = inputs_of(result.model, "y")
    np.testing.assert_allclose(x / w, np.full(8, (x / w)[0]), rtol=1e-4)  # alpha 0.5 makes equal


@pytest.mark.parametrize(
    "between",
    [
        [],
        [node("Relu", "a", "n")],
        [node("Add", "a beta", "b"), node("Relu", "b", "n")],
        [node("Add", "a half", "n")],
        [node("PRelu", "a slope", "n")],
    ],
    ids=["nothing", "Relu", "bias", "one number", "PRelu"],
)
def test_a_layer_before_takes_the_factor(between: list[onnx.NodeProto]) -> None:
    last = "n" if between else "a"
    model = chain(
        node("MatMul", "x first", "a"), *between, node("MatMul", f"{last} w", "y"),
        first=np.diag(_UNEVEN) + np.float32(0.01), **_CONSTANTS,
    )  # fmt: skip

    result = smooth(model, SmoothQuant(alpha=0.5), samples())

    check_same(model, result)
    x, w = inputs_of(result.model, "y")
    np.testing.assert_allclose(x / w, np.full(8, (x / w)[0]), rtol=1e-4)


def test_a_convolution_takes_the_factor_through_a_transposition() -> None:
    model = chain(
        node("Conv", "x k b", "a"), node("Transpose", "a", "n", perm=[0, 2, 3, 1]),
        node("MatMul", "n w", "y"), k=(8, 3, 1, 1), b=(8,), **_CONSTANTS,
    )  # fmt: skip

    (site,) = find_sites(model.graph)

    assert site.layer is not None
    check_same(model, smooth(model, SmoothQuant(alpha=0.7), samples()))


def test_layers_that_read_the_same_are_smoothed_together() -> None:
    model = chain(
        *written_out(), node("MatMul", "n w", "q"), node("MatMul", "n u2", "k"),
        node("Add", "q k", "y"), node("Shape", "n", "ignored"), u2=(8, 6), **_CONSTANTS,
    )  # fmt: skip

    (site,) = find_sites(model.graph)
    result = smooth(model, SmoothQuant(alpha=0.5), samples())

    assert [layer.node.outputs[0].name for layer in site.consumers] == ["q", "k"]
    assert "2 layers at 1 sites" in result.notes[0]
    check_same(model, result)


@pytest.mark.parametrize(
    "nodes",
    [
        [*written_out(), node("MatMul", "n w", "m"), node("ReduceMean", "n", "r", axes=[-1]),
         node("Add", "m r", "y")],
        [node("Sigmoid", "x", "n"), node("MatMul", "n w", "y")],
        [node("Mul", "x gamma", "a"), node("Clip", "a zero four", "n"), node("MatMul", "n w", "y")],
        [node("Mul", "x gamma", "a"), node("Sigmoid", "a", "n"), node("MatMul", "n w", "y")],
    ],
    ids=["consumed by another", "no producer", "bounded", "bent"],
)  # fmt: skip
def test_nothing_takes_it_unless_a_mul_is_asked_for(nodes: list[onnx.NodeProto]) -> None:
    model = chain(*nodes, **_CONSTANTS)

    assert not Smooth().applies(model, SmoothQuant())
    assert smooth(model, SmoothQuant(), samples()).model is model
    result = smooth(model, SmoothQuant(alpha=0.5, insert=True), samples())

    assert len(list(result.model.graph)) == len(list(model.graph)) + 1
    check_same(model, result)


def test_without_layers_no_data_is_run() -> None:
    model = chain(node("Conv", "x k", "a"), node("Relu", "a", "y"), k=(8, 3, 1, 1))

    def none():
        raise AssertionError("the data was run")
        yield

    assert smooth(model, SmoothQuant(), none()).model is model


def test_channels_that_are_never_used_do_not_decide_anything() -> None:
    gamma, weight = _UNEVEN.copy(), np.random.default_rng(0).normal(size=(8, 6))
    gamma[2], weight[5] = 0, 0
    constants = _CONSTANTS | {"gamma": gamma, "w": weight.astype(np.float32), "beta": gamma}
    model = chain(
        node("LayerNormalization", "x gamma beta", "n"), node("MatMul", "n w", "y"), **constants
    )

    result = smooth(model, SmoothQuant(alpha=0.5), samples())

    check_same(model, result)
    x, w = inputs_of(result.model, "y")
    assert x[5] <= np.delete(x, 5).max() * 1.001
    assert w[2] <= np.delete(w, 2).max() * 1.001


def test_the_search_leaves_even_channels_alone() -> None:
    constants = _CONSTANTS | {"gamma": np.ones(8, np.float32), "w": np.ones((8, 6), np.float32)}
    model = chain(
        node("LayerNormalization", "x gamma", "n"), node("MatMul", "n w", "y"), **constants
    )
    even = [{"x": np.tile([1, -1], (1, 3, 8, 4)).astype(np.float32)}]

    assert "1 better as is" in smooth(model, SmoothQuant(), even).notes[0]


@pytest.mark.parametrize("alpha", [-0.1, 1.5])
def test_an_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        SmoothQuant(alpha=alpha)


@pytest.mark.parametrize(
    ("name", "shape", "layers"),
    [("vit_s_focus", (1, 3, 224, 224), 60), ("ppocrv4_rec", (1, 3, 48, 96), 4)],
)
def test_real_transformers_compute_the_same(
    assets: pathlib.Path, name: str, shape: tuple[int, ...], layers: int
) -> None:
    path = assets / "models" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"LOWBIT_ASSETS has no models/{name}.onnx")
    model = normalize(io.load(path))
    given, wanted = (str(v[0].name) for v in (model.graph.inputs, model.graph.outputs))
    feeds = [{given: np.random.default_rng(0).normal(size=shape).astype(np.float32)}]

    result = smooth(model, SmoothQuant(alpha=0.5), feeds)

    assert f"the input of {layers} layers" in result.notes[0]
    with session(model) as before, session(result.model) as after:
        want, got = before.run([wanted], feeds[0])[0], after.run([wanted], feeds[0])[0]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * abs(want).max())


_RNG = np.random.default_rng(11)
_GAMMA = np.exp(_RNG.normal(size=256))
_UNIT = _RNG.normal(size=(1000, 256))
_X = _UNIT * _GAMMA
_W = _RNG.normal(size=(64, 256)) * np.exp(0.5 * _RNG.normal(size=256))
_CONSUMED = Consumed.of(_W[None, :, :, None], np.abs(_X).max(axis=0), np.square(_X).mean(axis=0))
_PRODUCED = Produced(_GAMMA, np.square(_GAMMA))
_RANGES = (_CONSUMED.ranges, np.abs(_W).max(axis=0))


def rounded(a: np.ndarray, levels: int, axis: int | None = None) -> np.ndarray:
    if levels == 0:
        return a
    step = np.abs(a).max(axis=axis, keepdims=True) / levels
    return np.round(a / step) * step


def simulated(s: np.ndarray, levels: Levels, *, takes: bool) -> float:
    gamma = rounded(_GAMMA / s, levels.weight) if takes else _GAMMA / s
    x = rounded(_UNIT * gamma, levels.activation)
    w = rounded(_W * s, levels.weight, 1 if levels.per_channel else None)
    want = _X @ _W.T
    return float(np.square(x @ w.T - want).sum() / np.square(want).sum())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize(
    "levels", [Levels(), Levels(per_channel=True), Levels(activation=32767), Levels(weight=31)]
)
def test_predicted_noise_is_that_of_rounding(alpha: float, takes: bool, levels: Levels) -> None:
    s = smooth_factors(*_RANGES, alpha)

    predicted = output_noise([_CONSUMED], _PRODUCED if takes else None, s, levels)

    assert predicted == pytest.approx(simulated(s, levels, takes=takes), rel=0.25)


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("levels", [Levels(), Levels(per_channel=True), Levels(activation=32767)])
def test_the_alpha_chosen_is_as_good_as_the_best(takes: bool, levels: Levels) -> None:
    found = best_alpha([_CONSUMED], _PRODUCED if takes else None, _RANGES, levels)
    noise = {a: simulated(smooth_factors(*_RANGES, a), levels, takes=takes) for a in ALPHAS}
    plain = simulated(np.ones(256), levels, takes=takes)

    chosen = plain if found is None else noise[found]
    assert chosen <= 1.05 * min(plain, *noise.values())
    assert chosen < 0.7 * max(plain, *noise.values())


def test_factors_are_those_of_the_formula_up_to_one_for_all() -> None:
    s = smooth_factors(*_RANGES, 0.3)

    ratio = s / (_RANGES[0] ** 0.3 / _RANGES[1] ** 0.7)
    np.testing.assert_allclose(ratio, ratio[0])
    assert np.exp(np.log(s).mean()) == pytest.approx(1)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_factors_are_finite_whatever_the_data(bad: float) -> None:
    x = np.array([1.0, bad, 2.0])

    s = smooth_factors(x, np.array([1.0, 1.0, 0.0]), 0.5)

    assert np.isfinite(s).all()
    assert (s > 0).all()


def test_rounding_that_does_not_happen_makes_no_noise() -> None:
    assert output_noise([_CONSUMED], _PRODUCED, np.ones(256), Levels(0, 0)) == 0


def _post_norm() -> onnx.ModelProto:
    """Return a normalization that two layers and a residual sum read, one channel far larger."""
    net = Network()
    x = net.norm(net.input("x", ["batch", TOKENS, WIDTH]))
    x = net.add("Mul", x, net.constant(np.where(np.arange(WIDTH) == 3, 60.0, 1.0)))
    return net.model(net.add("Add", x, net.add("Add", net.linear(x), net.linear(x))))


def test_layers_that_quantize_for_themselves_get_a_product_each() -> None:
    model = _post_norm()
    graph = normalize(ir.from_proto(model)).graph
    source = str(next(node for node in graph if node.op_type == "MatMul").inputs[0].name)

    assert find_sites(graph) == []
    sites = find_sites(graph, own_inputs=(source,))
    assert [len(site.consumers) for site in sites] == [1, 1]
    assert all(site.is_own for site in sites)


def test_smoothing_before_such_layers_changes_no_function_and_gains() -> None:
    model = _post_norm()
    plain = PRESETS["A8W8"].config
    configs = {
        name: msgspec.structs.replace(
            plain,
            refinement=None,
            equalization=None,
            keep_only_if_better=False,
            smooth_quant=wanted,
        )
        for name, wanted in (("without", None), ("with", SmoothQuant()))
    }
    found = {n: lowbit.quantize(model, data=feeds(model), config=c) for n, c in configs.items()}

    feed = feeds(model)[0]
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    smoothed = ir.to_proto(found["with"].state.float_model).SerializeToString()
    got = onnxruntime.InferenceSession(smoothed).run(None, feed)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    muls = [node for node in found["with"].state.float_model.graph if "smooth" in str(node.name)]
    assert len(muls) == 2
    assert found["with"].report.sqnr_db > found["without"].report.sqnr_db + 3


def test_no_channel_is_brought_to_the_very_end_of_the_scale() -> None:
    assert max(ALPHAS) == 0.8
