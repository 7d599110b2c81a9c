"""What outputs mean is told by structure first, and by values where that says nothing."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from lowbit.evaluate.output_kinds import find_measured, measured_tensors, seen_in
from lowbit.graph import io


def _model(graph: str):
    return io.load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{graph}'))


def _found(graph: str, **values):
    model = _model(graph)
    names = {name: name for name in measured_tensors(model)}
    return [(m.name, m.kind, m.tensor) for m in find_measured(model, seen_in([values]), names)]


_RNG = np.random.default_rng(0)


def _normal(*shape: int, scale: float = 1.0):
    return (_RNG.normal(size=shape) * scale).astype(np.float32)


def test_a_softmax_is_measured_before_it() -> None:
    found = _found(
        "g (float[1,9] x) => (float[1,9] z) { y = Softmax<axis=-1>(x)\n z = Identity(y) }",
        x=_normal(1, 9),
        z=np.full((1, 9), 1 / 9, np.float32),
    )

    assert found == [("z (before its activation)", "classes", "x")]


def test_without_the_logits_the_probabilities_are_measured() -> None:
    model = _model("g (float[1,9] x) => (float[1,9] z) { z = Softmax<axis=-1>(x) }")
    values = {"z": np.full((1, 9), 1 / 9, np.float32)}

    (found,) = find_measured(model, seen_in([values]), {"z": "z"})

    assert (found.kind, found.tensor, found.logits) == ("classes", "z", False)


def test_few_sigmoids_are_labels_and_a_map_of_them_scores() -> None:
    few = "g (float[1,3] x) => (float[1,3] z) { z = Sigmoid(x) }"
    many = "g (float[1,3,8,8] x) => (float[1,3,8,8] z) { z = Sigmoid(x) }"

    assert _found(few, x=_normal(1, 3), z=_normal(1, 3)) == [
        ("z (before its activation)", "labels", "x")
    ]
    shown = np.full((1, 3, 8, 8), 0.7, np.float32)
    assert _found(many, x=_normal(1, 3, 8, 8), z=shown) == [("z", "scores", "z")]


def test_a_map_of_scores_that_shows_nothing_is_measured_before_it() -> None:
    graph = "g (float[1,3,8,8] x) => (float[1,3,8,8] z) { z = Sigmoid(x) }"
    nothing = np.full((1, 3, 8, 8), 0.01, np.float32)

    assert _found(graph, x=_normal(1, 3, 8, 8), z=nothing) == [
        ("z (before its activation)", "values", "x")
    ]


def test_a_selection_is_measured_by_what_it_selects_from() -> None:
    graph = """g (float[1,9] x) => (int64[1] c) { y = Neg(x)
        c = ArgMax<axis=1, keepdims=0>(y) }"""

    assert _found(graph, y=_normal(1, 9), c=np.int64([3])) == [
        ("c (before its selection)", "values", "y")
    ]


def test_what_layers_compute_of_a_selection_is_measured_itself() -> None:
    """The experts that a router chooses: all that they compute lies after the selection."""
    graph = """g (float[1,4,16] x, float[16,6] r, float[16,8] w) => (float[1,4,8] y) <int64[1] two = {2}> {
        p = MatMul(x, r)\n best, i = TopK(p, two)\n one = Constant<value_ints=[1]>()
        g = ReduceSum<keepdims=1>(best)\n h = Mul(x, g)\n y = MatMul(h, w) }"""

    found = _found(graph, p=_normal(1, 4, 6), y=_normal(1, 4, 8))

    assert {row[2] for row in found} == {"y"}


def test_what_a_mask_selects_is_measured_itself() -> None:
    graph = """g (float[1,9,4] x) => (float[n,4] z) <float low = {0.1}> { s = ReduceMax<axes=[2], keepdims=0>(x)
        m = Greater(s, low)\n i = NonZero(m)\n t = Transpose<perm=[1,0]>(i)\n y = GatherND(x, t)\n z = Neg(y) }"""

    found = _found(graph, m=np.ones((1, 9), bool), z=np.ones((3, 4), np.float32))

    assert found == [("z", "scores", "z")]


@pytest.mark.parametrize(
    ("goes_on", "found"),
    [
        ("m = ReduceMax<keepdims=0>(r)\n go = Greater(m, low)", ("z (before its selection)", "f")),
        ("go = Identity(c)", ("z", "z")),  # as often as is asked for
    ],
)
def test_a_loop_that_ends_by_data_is_measured_before_it(
    goes_on: str, found: tuple[str, str]
) -> None:
    graph = f"""g (float[1,9] x) => (float[n,1,9] z) <int64 n = {{5}}, bool yes = {{1}}, float low = {{0.1}}> {{
        f = Neg(x)
        one = Constant<value_float = 1.0>()
        last, z = Loop(n, yes, f) <body = b (int64 i, bool c, float[1,9] s) => (bool go, float[1,9] r, float[1,9] o) {{
            m1 = Mul(s, f)\n r = Mul(m1, one)\n {goes_on}\n o = Identity(r) }}> }}"""
    shown = _found(graph, f=_normal(1, 9), z=np.ones((3, 1, 9), np.float32))

    assert [(row[0], row[2]) for row in shown] == [found]


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", _normal(1, 10, scale=8.0), "classes"),  # peaked, as logits are
        ("y", _normal(1, 512, scale=0.05), "embedding"),
        ("sentence_embedding", _normal(1, 10, scale=8.0), "embedding"),
        ("y", _normal(1, 7, 300, scale=4.0), "classes"),  # a vocabulary
        ("y", _normal(1, 3, 16, 16), "values"),
        ("y", np.abs(_normal(1, 3, 16, 16)) / 10, "scores"),
        ("y", np.arange(9), "labels"),
    ],
)
def test_without_an_activation_values_tell(name: str, array: np.ndarray, kind: str) -> None:
    kind_of = "int64" if array.dtype.kind == "i" else "float"
    shape = ",".join(map(str, array.shape))
    graph = f"g ({kind_of}[{shape}] x) => ({kind_of}[{shape}] {name}) {{ {name} = Identity(x) }}"

    assert [row[1] for row in _found(graph, **{name: array})] == [kind]


_ATTENTION = """s = Transpose<perm=[0,2,1]>(x)
    m = MatMul(x, s)
    p = Softmax<axis=-1>(m)
    """


@pytest.mark.parametrize(
    ("before", "node", "shape", "kind"),
    [
        (_ATTENTION, "MatMul(p, x)", (1, 50, 80), "embedding"),  # of each token
        (_ATTENTION, "Log(x)", (1, 50, 80), "values"),
        ("", "Log(x)", (1, 50, 80), "values"),  # a spectrogram
        ("", "Log(x)", (2, 50, 80), "values"),
        ("", "Log(x)", (1, 1, 80), "embedding"),
    ],
)
def test_rows_called_features_are_embeddings_if_attention_computes_them(
    before: str, node: str, shape: tuple[int, ...], kind: str
) -> None:
    sizes = ",".join(map(str, shape))
    graph = f"g (float[{sizes}] x) => (float[{sizes}] features) {{ {before} features = {node} }}"

    assert {row[1] for row in _found(graph, features=_normal(*shape))} == {kind}


def test_boxes_and_scores_in_one_output_are_apart() -> None:
    y = np.concatenate([_normal(1, 4, 50, scale=90), np.abs(_normal(1, 3, 50)) / 9], axis=1)
    graph = "g (float[1,7,50] x) => (float[1,7,50] y) { y = Identity(x) }"

    assert [row[:2] for row in _found(graph, y=y)] == [
        ("y[:, 0:4]", "values"),
        ("y[:, 4:7]", "scores"),
    ]


def test_objects_and_their_classes_in_one_output_are_apart() -> None:
    y = np.concatenate([_normal(1, 80, 4, scale=90), np.full((1, 80, 4), 0.6)], axis=2)
    y[..., 4] = 0.01
    y[0, 5, 4] = 0.9
    graph = "g (float[1,80,8] x) => (float[1,80,8] y) { y = Identity(x) }"

    assert [row[:2] for row in _found(graph, y=y.astype(np.float32))] == [
        ("y[:, :, 0:4] (weighted by y[:, :, 4:5])", "values"),
        ("y[:, :, 4:5]", "scores"),
        ("y[:, :, 5:8] (weighted by y[:, :, 4:5])", "scores"),
    ]


def test_several_outputs_of_a_detector_are_read_where_its_scores_are() -> None:
    graph = """g (float[1,1,8,8] a, float[1,4,8,8] b) => (float[1,1,8,8] heat, float[1,4,8,8] box) {
        heat = Sigmoid(a)
        box = Identity(b) }"""
    heat = np.full((1, 1, 8, 8), 0.01, np.float32)
    heat[0, 0, 2, 2] = 0.5
    model = _model(graph)
    values = {"a": _normal(1, 1, 8, 8), "heat": heat, "box": _normal(1, 4, 8, 8)}

    _, box = find_measured(model, seen_in([values]), {name: name for name in values})

    assert box.name == "box (weighted by heat)"
    assert np.array_equal(box.of(values["box"], values), values["box"] * heat)


def test_of_several_samples_the_one_that_shows_something_tells() -> None:
    quiet, loud = {"y": np.float32([0.1])}, {"y": np.float32([0.9])}

    assert seen_in([quiet, loud, quiet]).strongest["y"] is loud["y"]


def test_positions_of_which_samples_have_different_numbers_are_no_channels() -> None:
    model = _model("g (float[1,80,t] x) => (float[1,80,t] y) { y = Identity(x) }")
    long, short = _normal(1, 80, 40), _normal(1, 80, 30)
    long[:, :, 35:] = 1e-6  # padding after the signal

    (found,) = find_measured(model, seen_in([{"y": long}, {"y": short}]), {"y": "y"})

    assert found.name == "y"
    assert len(find_measured(model, seen_in([{"y": long}]), {"y": "y"})) == 2


def test_numbers_of_which_samples_have_differently_many_are_no_embedding() -> None:
    model = _model("g (float[1,t] x) => (float[1,t] y) { y = Exp(x) }")

    (found,) = find_measured(model, seen_in([{"y": _normal(1, n)} for n in (128, 100)]), {"y": "y"})

    assert found.kind == "values"


def test_a_few_numbers_are_a_regression_and_many_an_embedding() -> None:
    graph = "g (float[1,4] x) => (float[1,n] y) { y = Exp(x) }"

    kinds = [_found(graph, y=_normal(1, width))[0][1] for width in (4, 128)]

    assert kinds == ["values", "embedding"]


def test_the_arrays_of_a_sequence_are_measured_one_by_one() -> None:
    values = {"y[0 of 2]": _normal(2, 4), "y[1 of 2]": np.ones(2, np.int64)}

    found = _found(
        "g (float[2,4] x) => (seq(float[2,4]) y) { y = SequenceConstruct(x, x) }", **values
    )

    assert [row[:2] for row in found] == [("y[0 of 2]", "values"), ("y[1 of 2]", "labels")]


def test_caches_are_not_measured_beside_what_is_made_of_them() -> None:
    graph = """g (float[1,9] x, float[1,2,N,4] past_key) => (float[1,9] logits, float[1,2,N,4] present_key) {
        logits = Identity(x)
        present_key = Identity(past_key)
    }"""

    found = _found(graph, logits=_normal(1, 9, scale=9), present_key=_normal(1, 2, 3, 4))

    assert [name for name, _, _ in found] == ["logits"]


def test_an_image_of_integers_is_measured_before_it_is_rounded() -> None:
    graph = """g (float[1,3,8,8] x) => (uint8[1,8,8,3] y) {
        r = Round(x)
        u = Cast<to=2>(r)
        y = Transpose<perm=[0,2,3,1]>(u) }"""
    pixels = np.full((1, 3, 8, 8), 200, np.float32)

    assert _found(graph, r=pixels, y=pixels.astype(np.uint8)) == [
        ("y (before its rounding)", "values", "r")
    ]


def test_integers_of_a_decision_are_labels() -> None:
    graph = """g (float[1,8] x) => (int64[1,8] y) <float k = {0.5}> {
        b = Greater(x, k)
        y = Cast<to=7>(b) }"""
    names = np.ones((1, 8), bool), np.ones((1, 8), np.int64)

    assert _found(graph, b=names[0], y=names[1]) == [("y", "labels", "y")]
