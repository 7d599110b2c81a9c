"""Rotation: the float function stays, outliers spread."""

import msgspec
import numpy as np
import pytest
from helpers.transformer_models import PAIRS, WIDTH, tokens, transformer

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.transforms import RotatedStream, Rotation
from lowbit.errors import ConfigError, PlanError
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize
from lowbit.transforms.implementation import Context, TransformedModel
from lowbit.transforms.rotation import Rotate, rotation, spreading_basis


def _config(pairs=PAIRS, **changes) -> Rotation:
    streams = tuple(
        RotatedStream(
            producers=tuple(p["prev_nodes"]), consumers=tuple(p["next_nodes"]), norm=p["norm_node"]
        )
        for p in pairs
    )
    return Rotation(**{"streams": streams, "size": WIDTH, **changes})


def rotate(model, config: Rotation, data) -> TransformedModel:
    assert Rotate().applies(model, config)
    return Rotate().apply(model, config, Context(data=data))


def _ready(*arguments, **keywords):
    return normalize(io.load(transformer(*arguments, **keywords)), tokens(1)[0])


def _stream(model, name="s1"):
    with session(model, [name]) as running:
        return np.concatenate([running.run([name], feed)[0] for feed in tokens()])


@pytest.mark.parametrize("size", [2, 3, 8, 12, 24, 45, 64, 384])
def test_the_basis_is_orthogonal_and_spreads(size):
    basis = spreading_basis(size)
    np.testing.assert_allclose(basis @ basis.T, np.eye(size), atol=1e-12)
    np.testing.assert_allclose(basis[:, 0], 1 / np.sqrt(size), rtol=1e-12)
    assert np.abs(basis).max() <= np.sqrt(2 / (size // (size & -size)) / (size & -size)) + 1e-12


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("keep_mean", [True, False])
def test_rotations_are_orthogonal_and_keep_the_mean_if_asked_to(keep_mean, random):
    matrix = rotation(48, keep_mean=keep_mean, random=random, seed=1)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(48), atol=1e-12)
    ones = np.ones(48)
    if keep_mean:
        np.testing.assert_allclose(ones @ matrix, ones, atol=1e-12)
    # An outlier in one channel reaches no more than a part of its size in any.
    off_mean = np.abs(matrix - (1 / 48 if keep_mean else 0)).max()
    assert off_mean < 0.6


@pytest.mark.parametrize("gemm", [True, False])
@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("norm", ["LayerNormalization", "rms"])
def test_the_float_function_stays(norm, random, gemm):
    model = _ready(norm, gemm=gemm)
    result = rotate(model, _config(random=random), tokens())
    with session(model) as before, session(result.model) as after:
        for feed in tokens():
            want, got = before.run(["y"], feed)[0], after.run(["y"], feed)[0]
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())
    assert "rotated 24 channels between 9 layers" in result.notes[0]


@pytest.mark.parametrize("norm", ["LayerNormalization", "rms"])
def test_the_stream_is_turned_and_its_outliers_spread(norm):
    model = _ready(norm)
    result = rotate(model, _config(), tokens())
    before, after = _stream(model), _stream(result.model)
    matrix = rotation(WIDTH, keep_mean=norm != "rms", random=False, seed=0)
    np.testing.assert_allclose(after, before @ matrix, atol=1e-4 * np.abs(before).max())

    def outliers(x):
        return np.abs(x).max() / np.sqrt(np.mean(x**2))

    assert outliers(after) < 0.8 * outliers(before)


def test_the_seed_decides_the_signs():
    model = _ready("rms")
    streams = [
        _stream(rotate(model, _config(random=True, seed=s), tokens()).model) for s in (1, 1, 2)
    ]
    np.testing.assert_array_equal(streams[0], streams[1])
    assert not np.allclose(streams[0], streams[2])


def test_a_quantized_model_comes_nearer_to_float():
    config = msgspec.structs.replace(
        find_preset("A8W8"),
        equalization=None,
        smooth_quant=None,
        refinement=None,
        keep_only_if_better=False,
    )
    feeds = tokens(16)
    plain = lowbit.quantize(transformer("rms"), data=feeds, config=config)
    turned = lowbit.quantize(
        transformer("rms"), data=feeds, config=msgspec.structs.replace(config, rotation=_config())
    )
    assert turned.report.sqnr_db > plain.report.sqnr_db + 1
    assert any(note.startswith("rotated 24 channels") for note in turned.report.notes)


def test_the_model_given_is_not_changed():
    model = _ready()
    before = io.to_proto(model).SerializeToString()
    rotate(model, _config(), tokens())
    assert io.to_proto(model).SerializeToString() == before


def test_a_layer_that_is_not_named_is_noticed():
    pairs = [{**PAIRS[0], "prev_nodes": ["embed"]}, *PAIRS[1:]]
    with pytest.raises(PlanError, match="changes what the model computes: output 'y' is off by"):
        rotate(_ready(), _config(pairs), tokens())


def test_mistakes_are_named():
    def wrong(match, **pair):
        with pytest.raises(PlanError, match=match):
            rotate(_ready(), _config([{**PAIRS[0], **pair}]), tokens())

    wrong("no node is called 'upp0'; did you mean", next_nodes=["upp0", "gate0"])
    wrong("'norm0' is consumed by 'gate0' too", next_nodes=["up0"])
    wrong("'relu0' has no matrix", next_nodes=["relu0"], norm_node=None)
    wrong("Relu 'relu0' is no normalization", norm_node="relu0", next_nodes=["mul0"])
    wrong("Add 'add0' has no constant", prev_nodes=["add0"])
    with pytest.raises(PlanError, match="has 24 channels there, but the rotation has 32"):
        rotate(_ready(), _config(size=32), tokens())
    with pytest.raises(ConfigError, match=r"rotation\.size is 1"):
        _config(size=1)
    with pytest.raises(ConfigError, match="names no layer"):
        Rotation(streams=(RotatedStream(norm="norm0"),), size=8)


LAYERS = """g (float[5,6] x) => (float[5,4] y) {
  [produce] s = MatMul(x, w0)
  [norm] n = LayerNormalization(s, gamma, beta)
  [gemm] a = Gemm<alpha=0.5, beta=2.0>(n, w1, b1)
  [matmul] b = MatMul(n, w2)
  [offset] c = Add(b, b2)
  [plain] d = MatMul(n, w3)
  e = Add(a, c)
  y = Mul(e, d)
}"""


@pytest.fixture
def layers(normal, floats):
    """Return a stream that a normalization reads, with an offset that has to go somewhere."""
    shapes = {"w0": (6, 8), "w1": (8, 4), "b1": (4,), "w2": (8, 4), "b2": (4,), "w3": (8, 4)}
    shapes |= {"gamma": (8,), "beta": (8,)}
    return normal(LAYERS, {name: floats(*shape) for name, shape in shapes.items()})


STREAM = RotatedStream(producers=("produce",), consumers=("gemm", "matmul", "plain"), norm="norm")


def test_the_offset_of_a_norm_goes_into_a_bias_an_add_or_one_of_its_own(layers, floats) -> None:
    feeds = [{"x": floats(5, 6)} for _ in range(3)]

    result = rotate(layers, Rotation(streams=(STREAM,), size=8), feeds)

    with session(layers) as before, session(result.model) as after:
        for feed in feeds:
            want, got = before.run(["y"], feed)[0], after.run(["y"], feed)[0]
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())
    constants = result.model.graph.initializers
    np.testing.assert_array_equal(constants["gamma"].const_value.numpy(), np.ones(8))
    np.testing.assert_array_equal(constants["beta"].const_value.numpy(), np.zeros(8))
    added = [n.name for n in result.model.graph if n.op_type == "Add"]
    assert added == ["offset", "plain_bias_add", "e"], "only one layer had no place for it"
    names = {str(n.name): n.outputs[0].name for n in result.model.graph}
    assert (names["plain"], names["plain_bias_add"]) == ("d_unshifted", "d")


def test_layers_that_several_streams_name_are_rotated_once(layers, floats) -> None:
    config = Rotation(streams=(STREAM, STREAM), size=8)

    once = rotate(layers, Rotation(streams=(STREAM,), size=8), [{"x": floats(5, 6)}])
    twice = rotate(layers, config, [{"x": floats(5, 6)}])

    assert io.to_proto(once.model) == io.to_proto(twice.model)


def test_without_data_nothing_is_run(layers) -> None:
    result = Rotate().apply(layers, Rotation(streams=(STREAM,), size=8), Context())

    assert result.notes == ("rotated 8 channels between 4 layers",)


def test_factors_that_are_computed_cannot_be_moved(normal, floats) -> None:
    model = normal(
        """g (float[5,6] x, float[8] gamma) => (float[5,4] y) {
          [produce] s = MatMul(x, w0)
          [norm] n = LayerNormalization(s, gamma)
          [consume] y = MatMul(n, w1)
        }""",
        {"w0": floats(6, 8), "w1": floats(8, 4)},
    )
    stream = RotatedStream(producers=("produce",), consumers=("consume",), norm="norm")

    with pytest.raises(
        PlanError, match="the factors of LayerNormalization 'norm' are no constants"
    ):
        Rotate().apply(model, Rotation(streams=(stream,), size=8), Context())
