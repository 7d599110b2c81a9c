"""The families are of operators that exist, and their rows say what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from lowbit.graph.session import session
from lowbit.ops import families
from lowbit.ops.families import ATTENTION, LAYER_NORMS, LayerNorm, layer_norm

_SIZE = 6


def _model(name: str, count: int) -> ir.Model:
    domain = "com.microsoft" if name.startswith("Skip") else ""
    sources = LAYER_NORMS[name].sources
    values = [
        ir.val(f"in{index}", ir.DataType.FLOAT, (2, 3, _SIZE) if index < sources else (_SIZE,))
        for index in range(count)
    ]
    attributes = {"epsilon": 1e-6} | ({} if domain else {"axis": -1})
    node = ir.node(name, values, attributes, domain=domain)
    node.outputs[0].name = "y"
    node.outputs[0].dtype = ir.DataType.FLOAT
    # The first operator set that has it: onnxruntime 1.22 knows up to 22.
    opsets = {"": 23 if name == "RMSNormalization" else 17, "com.microsoft": 1}
    graph = ir.Graph(values, node.outputs[:1], nodes=[node], opset_imports=opsets, name="g")
    return ir.Model(graph, ir_version=10)


def _expected(row: LayerNorm, arrays: list[np.ndarray]) -> np.ndarray:
    total = sum(arrays[: row.sources])
    if row.bias is not None:
        total = total + arrays[row.bias]
    if row.subtracts_mean:
        total = total - total.mean(-1, keepdims=True)
    result = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * arrays[row.factor]
    return result if row.offset is None else result + arrays[row.offset]


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    old = name == "RMSNormalization" and tuple(map(int, ort.__version__.split(".")[:2])) < (1, 23)
    return (pytest.mark.skip(reason="onnxruntime before 1.23 does not have it"),) if old else ()


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in LAYER_NORMS])
def test_a_row_names_the_inputs_that_onnxruntime_reads_so(name: str) -> None:
    row = LAYER_NORMS[name]
    count = 1 + max(row.factor, row.offset or 0, row.bias or 0)
    random = np.random.default_rng(1)
    shapes = [(2, 3, _SIZE) if index < row.sources else (_SIZE,) for index in range(count)]
    arrays = [random.normal(1, 2, shape).astype(np.float32) for shape in shapes]
    feed = {f"in{index}": array for index, array in enumerate(arrays)}

    with session(_model(name, count)) as running:
        (found,) = running.run(["y"], feed)

    np.testing.assert_allclose(found, _expected(row, arrays), atol=1e-4)


def test_other_operators_are_no_normalization_of_the_last_axis() -> None:
    assert layer_norm(ir.node("BatchNormalization", [None] * 5)) is None


_SCHEMAS = {(s.domain, s.name): s for s in runtime.get_all_operator_schema()}
_MASKS = ("attention_bias", "attn_mask", "mask")


def _family(name: str) -> list[str]:
    return [word.rpartition("::")[2] for word in getattr(families, name)]


@pytest.mark.parametrize("name", [n for n in vars(families) if n.isupper() and n != "ATTENTION"])
def test_every_member_of_a_family_is_an_operator(name: str) -> None:
    known = {word for _, word in _SCHEMAS} | {"RMSNormalization"}  # younger than onnxruntime 1.22

    assert set(_family(name)) <= known


def test_attention_reads_its_mask_where_its_schema_says() -> None:
    seen = []
    for name, index in ATTENTION.items():
        domain, _, word = name.rpartition("::")
        schema = _SCHEMAS.get((domain, word))
        inputs = [] if schema is None else [each.name for each in schema.inputs]
        masks = [i for i, each in enumerate(inputs) if each in _MASKS]
        if masks:  # an older runtime lacks some operators, or their mask
            seen.append(name)
            assert masks == [index], name

    assert len(seen) >= 5
