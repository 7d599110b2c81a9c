"""Attributes of AMD's block operators: written and read they mean the same format."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from lowbit.config.specs import BLOCKS, BfpSpec, BlockSpec, MxSpec
from lowbit.errors import ConfigError, ModelError
from lowbit.numerics.blocks import Element, Rounding
from lowbit.ops.block_attributes import (
    BfpAttributes,
    block_attributes,
    block_operator,
    block_spec,
)

_OLDER = {"BFPQuantizeDequantize": "BFPFixNeuron", "MXQuantizeDequantize": "MXFixNeuron"}


def _node(op: str, **attributes: int | str) -> ir.Node:
    return ir.node(op, [ir.val("x")], attributes, name="round", domain="com.amd.quark")


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_written_is_read_again(name: str, rounding: Rounding) -> None:
    spec = BLOCKS[name]
    spec = type(spec)(
        **{f: getattr(spec, f) for f in spec.__struct_fields__} | {"rounding": rounding}
    )

    op, attributes = block_operator(spec, 3)

    for each in (op, _OLDER[op]):
        node = _node(each, **attributes)
        assert block_spec(node) == spec
        assert block_attributes(node).axis == 3


@pytest.mark.parametrize(
    ("op", "spec"),
    [
        ("BFPQuantizeDequantize", BfpSpec(bits=16, block=8, rounding=Rounding.AWAY)),
        (
            "MXQuantizeDequantize",
            MxSpec(element=Element.INT8, block=32, rounding=Rounding.AWAY),
        ),
    ],
)
def test_what_a_node_leaves_out_is_amds_default(op: str, spec: BlockSpec) -> None:
    assert block_spec(_node(op)) == spec
    assert block_attributes(_node(op, block_shape=1)).axis == 1


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        (
            "BFPQuantizeDequantize",
            {"bfp_method": "to_bfp_prime", "sub_block_size": 4},
            "sub-blocks of 4",
        ),
        ("BFPQuantizeDequantize", {"convert_to_bfloat_before_bfp": 1}, "convert_to_bfloat"),
        ("BFPQuantizeDequantize", {"rounding_mode": 7}, "7"),
        ("MXQuantizeDequantize", {"element_dtype": "fp9"}, "fp9"),
    ],
)
def test_what_has_no_format_is_an_error_that_names_the_node(
    op: str, attributes: dict[str, int | str], message: str
) -> None:
    with pytest.raises(ModelError, match=f"{op} 'round': .*{message}"):
        block_spec(_node(op, **attributes))


def test_sub_blocks_count_only_where_there_are_any() -> None:
    assert not BfpAttributes(sub_block_size=4).spec().pairs
    with pytest.raises(ConfigError, match="sub-blocks of 4"):
        BfpAttributes(bfp_method="to_bfp_prime", sub_block_size=4).spec()
