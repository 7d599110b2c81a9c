"""Centered tensors: symmetric integers do what zero points would, and the model is nearer to float."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from helpers.model_outputs import outputs_of, sqnr_of
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.calibrate.statistics import load_stats, save_stats
from lowbit.config.presets import find_preset
from lowbit.config.scale_search import Centering, ScaleSearch
from lowbit.config.specs import IntegerSpec, Rule, TensorOverride
from lowbit.numerics.formats import IntegerFormat
from lowbit.search.scale_search import tuned_groups

NAME = "centering"


def _network(pads: int = 0, activation: str = "Relu") -> onnx.ModelProto:
    """Return four layers with what a Relu leaves between them."""
    rng = np.random.default_rng(5)
    nodes, constants, source = [], [("zero", np.float32(0)), ("bound", np.float32(3))], "x"
    for index in range(4):
        weight = rng.normal(size=(8, 8 if index else 3, 1, 1)).astype(np.float32) / 2
        bias = rng.normal(size=8).astype(np.float32)
        constants += [(f"w{index}", weight), (f"b{index}", bias)]
        inputs = [source, f"w{index}", f"b{index}"]
        around = [pads if index else 0] * 4
        nodes.append(helper.make_node("Conv", inputs, [f"c{index}"], f"conv{index}", pads=around))
        source = f"c{index}"
        if index < 3:
            bounds = ["zero", "bound"] if activation == "Clip" else []
            node = helper.make_node(activation, [source, *bounds], [f"r{index}"], f"act{index}")
            nodes.append(node)
            source = f"r{index}"
    graph = helper.make_graph(
        nodes,
        "centering",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _feeds(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


def _config(preset: str = "A8W8", **changes: object) -> lowbit.QuantConfig:
    given = {"equalization": None, "refinement": None, "centering": Centering()}
    return msgspec.structs.replace(find_preset(preset), **{**given, **changes})


def _quantized(model: onnx.ModelProto, config: lowbit.QuantConfig, **more: object) -> lowbit.Result:
    return lowbit.quantize(
        model, data=_feeds(24), config=config, promote=False, allow_ruined=True, **more
    )


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_the_model_is_nearer_to_float_on_samples_that_were_not_seen(activation: str) -> None:
    model = _network(activation=activation)
    plain, found = (_quantized(model, _config(centering=c)) for c in (None, Centering()))

    (step,) = (s for s in found.report.steps if s.name == NAME)
    assert step.kept
    others = _feeds(12, seed=1)
    assert sqnr_of(model, found, others) > sqnr_of(model, plain, others) + 1.0


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_quantizers_alone_do_what_the_activation_did(activation: str) -> None:
    found = _quantized(_network(activation=activation), _config())

    assert not {"Relu", "Clip"} & {node.op_type for node in found.model.graph.node}
    assert len(found.config.rescaling.offsets) == 3
    for name in ("r0", "r1", "r2"):
        params = found.params.tensors[name]
        assert params.format is IntegerFormat.INT8
        assert int(params.zero_point) == 0
        # Zero is the lowest integer: it is exact.
        assert found.config.rescaling.offsets[name] == 128 * float(params.scale)


def test_an_activation_that_is_excluded_stays_as_it_is() -> None:
    found = _quantized(_network(), _config(exclude=("act1",)))

    assert set(found.config.rescaling.offsets) == {"r0", "r2"}
    assert [n.name for n in found.model.graph.node if n.op_type in ("Relu", "Clip")] == ["act1"]


def test_it_is_as_near_as_with_zero_points() -> None:
    """The same network in a format that has zero points, with the same scales."""
    model = _network()
    found = _quantized(model, _config())
    asymmetric = IntegerSpec(format=IntegerFormat.INT8, symmetric=False)
    scales = {name: float(found.params.tensors[name].scale) for name in ("r0", "r1", "r2")}
    overrides = tuple(
        TensorOverride(tensor=name, spec=asymmetric, range=(0.0, 255 * scale))
        for name, scale in scales.items()
    )
    other = _quantized(model, _config(centering=None, tensors=overrides))

    for name, scale in scales.items():
        assert int(other.params.tensors[name].zero_point) == -128
        assert float(other.params.tensors[name].scale) == pytest.approx(scale, rel=1e-6)
    feeds = _feeds(8, seed=2)
    step = float(found.params.tensors[found.model.graph.output[0].name].scale)
    for one, two in zip(
        outputs_of(found.model, feeds), outputs_of(other.model, feeds), strict=True
    ):
        assert np.mean(np.abs(one - two) > step / 2) < 0.01


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (_network(pads=1), _config()),  # padding stands for zero
        (_network(), _config("U8S8")),  # it has zero points
        (_network(), _config("A16W8")),
        (_network(), _config("XINT8")),  # an 8-bit bias cannot take an offset
        (_network(), _config(bias_correction=False)),
    ],
)
def test_nothing_is_centered_where_it_cannot_gain(
    model: onnx.ModelProto, config: lowbit.QuantConfig
) -> None:
    found = _quantized(model, config)

    assert NAME not in [step.name for step in found.report.steps]
    assert found.config.rescaling is None or not found.config.rescaling.offsets


def test_a_run_of_its_configuration_gives_the_same() -> None:
    first = _quantized(_network(), _config())
    again = _quantized(_network(), first.config)

    assert again.config.rescaling == first.config.rescaling
    assert again.model.graph == first.model.graph


def test_statistics_of_a_centered_model_make_it_again(tmp_path) -> None:
    first = _quantized(_network(), _config())
    save_stats(first.state.stats, tmp_path / "stats.npz")

    again = _quantized(_network(), first.config, stats=load_stats(tmp_path / "stats.npz"))

    assert again.config.rescaling == first.config.rescaling
    assert again.model.graph == first.model.graph


def test_it_is_done_unasked_where_nothing_is_kept_only_if_better() -> None:
    found = _quantized(_network(), _config(keep_only_if_better=False))

    assert found.report.steps == ()
    assert len(found.config.rescaling.offsets) == 3


def test_scales_by_outputs_leave_centered_tensors_alone() -> None:
    found = _quantized(_network(), _config(scale_search=ScaleSearch()))

    tried = {name for group in tuned_groups(found.state) for name in group}
    assert not {"r0", "r1", "r2"} & tried
    assert "x" in tried


def test_a_centered_tensor_can_have_16_bits() -> None:
    first = _quantized(_network(), _config())
    wide = IntegerSpec(format=IntegerFormat.INT16)
    rules = tuple(Rule(nodes=(f"act{i}",), activation=wide) for i in range(3))
    config = msgspec.structs.replace(first.config, rules=rules)

    found = _quantized(_network(), config)

    assert found.params.tensors["r1"].format is IntegerFormat.INT16
    # Zero is inside the range, so nothing saturates where the Relu did.
    assert [node.op_type for node in found.model.graph.node].count("Clip") == 3
    others = _feeds(8, seed=3)
    assert sqnr_of(_network(), found, others) > sqnr_of(_network(), first, others) + 0.5


def test_a_comparison_knows_what_the_quantizers_do() -> None:
    model, feeds = _network(), _feeds(8, seed=4)
    plain, found = (_quantized(model, _config(centering=c)) for c in (None, Centering()))

    one, two = (lowbit.compare(model, each.model, feeds) for each in (plain, found))

    views = {view.tensor: view for view in two.tensors}
    assert {"r0", "r1", "r2"} <= views.keys()
    assert all(views[name].clipped < 0.05 for name in ("r0", "r1", "r2"))
    assert not any("with nothing quantized" in note for note in (*one.notes, *two.notes))
