"""What lies between a mask and its Softmax is not quantized, however the mask is made."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.attention_models import MASKED, MASKS, TOKENS, WIDTH, Network, block, feeds
from helpers.planned_models import plan_for

import lowbit
from lowbit.config.presets import PRESETS
from lowbit.normalize.normalize import normalize
from lowbit.planning.masks import find_masks


def _normalized(model: onnx.ModelProto) -> ir.Model:
    return normalize(ir.from_proto(model))


def _on_the_way(model: ir.Model) -> set[str]:
    """Return, by following the graph down from the mask, all that leads from it to the Softmax."""
    softmax = next(node for node in model.graph if node.op_type == "Softmax")
    names, edge = set[str](), [softmax.inputs[0]]
    while edge:
        value = edge.pop()
        if _is_scores(value):
            continue
        names.add(str(value.name))
        producer = value.producer()
        inputs = () if producer is None else producer.inputs
        edge += [v for v in inputs if v is not None and v.dtype == ir.DataType.FLOAT]
    return names


def _is_scores(value: ir.Value) -> bool:
    """Whether a value is the product of queries and keys, or that product scaled."""
    producer = value.producer()
    while producer is not None and producer.op_type in ("Div", "Mul"):
        producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
    return producer is not None and producer.op_type == "MatMul"


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("number", MASKED)
def test_all_between_a_mask_and_its_softmax_is_found(kind: str, number: float) -> None:
    model = _normalized(block(mask=kind, number=number))

    found = find_masks(model.graph)

    assert {value.name for value in found} >= _on_the_way(model)
    assert not any(_is_scores(value) for value in found)


@pytest.mark.parametrize("target", ["onnxruntime", "ryzen-ai", "ryzen-ai-cnn", "vint8"])
@pytest.mark.parametrize("kind", MASKS)
def test_no_target_of_ours_quantizes_a_mask(kind: str, target: str) -> None:
    model = _normalized(block(mask=kind))

    plan = plan_for(model, target)

    assert not _on_the_way(model) & set(plan.by_name())


# One preset of each target and each kind of activation.
_KINDS = "A8W8 A16W8 XINT8 U8S8 VINT8 DYNAMIC8 BF16 FP16_SCALED BFP16 MX9 MXINT8 MXFP8E4M3".split()


def _causal() -> onnx.ModelProto:
    net = Network()
    x = net.input("x", ["batch", TOKENS, WIDTH])
    scores = net.masked(net.scores(x), "constant", float(np.finfo(np.float32).min))
    return net.model(net.add("Add", x, net.attended(x, scores)))


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_quantizes_a_causal_mask(preset: str) -> None:
    planned = lowbit.plan(_causal(), preset=preset)

    assert not _on_the_way(_normalized(_causal())) & set(planned.by_name())


@pytest.mark.parametrize("preset", _KINDS)
def test_every_kind_of_format_keeps_a_causal_mask(preset: str) -> None:
    model = _causal()

    # As the preset plans it: promotion would mend what a quantized mask breaks.
    result = lowbit.quantize(model, data=feeds(model), preset=preset, promote=False)

    lowest = 12.0 if preset.startswith(("MX", "BF16_MX")) else 20.0
    assert result.report.sqnr_db > lowest


def test_a_masked_maximum_is_not_quantized() -> None:
    net = Network()
    x = net.linear(net.input("x", ["batch", 6, 16]))
    hidden = net.constant(np.arange(6)[None, :, None] > 3, bool)
    masked = net.add("Where", hidden, net.constant(-1e9), x)
    pooled = net.add("ReduceMax", masked, net.constant([1], np.int64), keepdims=0)
    model = _normalized(net.model(net.linear(pooled)))

    assert masked in {value.name for value in find_masks(model.graph)}
    assert masked not in plan_for(model).by_name()


def test_a_bias_before_a_softmax_is_no_mask() -> None:
    net = Network()
    x = net.input("x", ["batch", 16])
    model = _normalized(net.model(net.add("Softmax", net.linear(x))))

    assert not find_masks(model.graph)


def test_a_sum_of_two_layers_before_a_softmax_is_no_mask() -> None:
    net = Network()
    x = net.input("x", ["batch", 16])
    both = net.add("Add", net.linear(x), net.linear(x))
    model = _normalized(net.model(net.add("Softmax", both)))

    assert not find_masks(model.graph)
