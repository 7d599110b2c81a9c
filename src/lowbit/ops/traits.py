"""The table of operator traits that quantization depends on.

A row says which inputs are data, weight and bias, along which axis output channels lie, and how
the output's numbers relate to the input's. Whether an operator is quantized at all, and whether it
shares parameters, is the target's business (``lowbit.targets``).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir

from lowbit.graph.editing import constant, scalar
from lowbit.graph.naming import operator_name
from lowbit.ops.linear import LAYERS


class Kind(enum.Enum):
    """How an operator's output relates to its data inputs."""

    COMPUTES = "computes"
    MOVES = "moves"
    """The output holds numbers of the input, so that both can share scale and zero point."""
    CONCATENATES = "concatenates"
    """The output holds numbers of all inputs (Concat)."""
    CLAMPS = "clamps"
    """The output only narrows the input's range, so the input need not be quantized too."""
    AVERAGES = "averages"
    """The output lies inside the input's range."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """The quantization-relevant facts about one operator type.

    Attributes:
        kind: How the output relates to the data inputs.
        data: Inputs that carry data; ``None``: every float input.
        weight: The input that is the weight; ``bias``: the one that is the bias.
        constants: Further inputs that are quantized like weights, per tensor.
        channel_axis: Where the output channels of the weight lie.
        outputs: How many leading outputs are quantized; ``None``: all.
        applies: Whether a node with these attributes is quantized.
    """

    kind: Kind = Kind.COMPUTES
    data: tuple[int, ...] | None = None
    weight: int | None = None
    bias: int | None = None
    constants: tuple[int, ...] = ()
    channel_axis: Callable[[ir.Node], int] = lambda _: 0
    outputs: int | None = None
    applies: Callable[[ir.Node], bool] = lambda _: True


Operators: TypeAlias = Mapping[str, OpTraits]
"""Rows by operator type; ``domain::Type`` for operators that are not ONNX's own."""


def _is_unit_hardsigmoid(node: ir.Node) -> bool:
    """Whether this is the gate of HardSwish, the only slope NPUs have."""
    alpha = node.attributes.get_float("alpha", 0.2)
    return abs(alpha - 1 / 6) < 1e-4 and abs(node.attributes.get_float("beta", 0.5) - 0.5) < 1e-4


def _is_nearest(node: ir.Node) -> bool:
    return node.attributes.get_string("mode", "nearest") == "nearest"


def _is_dense(node: ir.Node) -> bool:
    """Whether a pool's window has no gaps, which integer kernels do not know."""
    return set(node.attributes.get_ints("dilations", ())) <= {1}


def _linear(name: str, *data: int) -> OpTraits:
    row = LAYERS[name]
    return OpTraits(data=data, weight=1, bias=row.bias, channel_axis=row.channel_axis)


_MOVES = OpTraits(kind=Kind.MOVES, data=(0,))
_UNARY = OpTraits(data=(0,))
_AVERAGES = OpTraits(kind=Kind.AVERAGES, data=(0,))
_CLAMPS = OpTraits(kind=Kind.CLAMPS, data=(0,))

OPERATORS: Operators = MappingProxyType(
    {
        "Conv": _linear("Conv", 0),
        "ConvTranspose": _linear("ConvTranspose", 0),
        "Gemm": _linear("Gemm", 0, 1),
        "MatMul": _linear("MatMul", 0, 1),
        "Add": OpTraits(),
        "Sub": OpTraits(),
        "Mul": OpTraits(),
        "Div": OpTraits(),
        "Min": OpTraits(),
        "Max": OpTraits(),
        "Where": OpTraits(data=(1, 2)),
        "Relu": _CLAMPS,
        "Clip": _CLAMPS,
        "LeakyRelu": _UNARY,
        "PRelu": OpTraits(data=(0,), constants=(1,)),
        "Sigmoid": _UNARY,
        "HardSigmoid": OpTraits(data=(0,), applies=_is_unit_hardsigmoid),
        "Softmax": _UNARY,
        "Tanh": _UNARY,
        "Gelu": _UNARY,
        "Erf": _UNARY,
        "ArgMax": OpTraits(data=(0,), outputs=0),
        "AveragePool": dataclasses.replace(_AVERAGES, applies=_is_dense),
        "GlobalAveragePool": _AVERAGES,
        "ReduceMean": _AVERAGES,
        "LpNormalization": _UNARY,
        "InstanceNormalization": OpTraits(data=(0,), weight=1, bias=2),
        "LayerNormalization": OpTraits(data=(0,), constants=(1, 2), outputs=1),
        "com.microsoft::EmbedLayerNormalization": OpTraits(outputs=1),
        "MaxPool": OpTraits(kind=Kind.MOVES, data=(0,), outputs=1),
        "Reshape": _MOVES,
        "Flatten": _MOVES,
        "Transpose": _MOVES,
        "Squeeze": _MOVES,
        "Unsqueeze": _MOVES,
        "Expand": _MOVES,
        "Tile": _MOVES,
        "Resize": _MOVES,
        "Slice": _MOVES,
        "Split": _MOVES,
        "Gather": _MOVES,
        "Pad": _MOVES,
        "DepthToSpace": _MOVES,
        "SpaceToDepth": _MOVES,
        "Concat": OpTraits(kind=Kind.CONCATENATES),
    }
)
"""The traits of every known operator; add rows of your own with ``OPERATORS | {...}``."""

DATA_MOVEMENT = tuple(name for name, row in OPERATORS.items() if row.kind is Kind.MOVES)
"""The data-movement operators."""


def traits_of(node: ir.Node, operators: Operators = OPERATORS) -> OpTraits | None:
    """Return the traits of ``node``, or ``None`` for an operator that is never quantized."""
    return operators.get(operator_name(node))


def is_data_movement(node: ir.Node, operators: Operators = OPERATORS) -> bool:
    """Whether a node only moves numbers."""
    traits = traits_of(node, operators)
    return traits is not None and traits.kind is Kind.MOVES


def moves_exactly(node: ir.Node) -> bool:
    """Whether each output number is an input number, or zero: not so for blended resizing."""
    if node.op_type == "Resize":
        return _is_nearest(node)
    if node.op_type == "Pad":
        if node.attributes.get_string("mode", "constant") != "constant":
            return True
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        return fill is None or scalar(fill) == 0.0
    return True


def clip_bounds(node: ir.Node) -> tuple[float | None, float | None]:
    """Return the constant bounds of a Relu or Clip; ``None`` where there is none."""
    if node.op_type == "Relu":
        return 0.0, None
    low = node.inputs[1] if len(node.inputs) > 1 else None
    high = node.inputs[2] if len(node.inputs) > 2 else None
    return scalar(low), scalar(high)


def non_negative(graph: ir.Graph) -> frozenset[str]:
    """Return the tensors that are at or above zero: by a Relu or Clip, or made of nothing but such."""
    found: set[str] = set()
    for node in graph:
        if _gives_non_negative(node, found):
            found.update(value.name for value in node.outputs if value.name)
    return frozenset(found)


def _gives_non_negative(node: ir.Node, known: Collection[str]) -> bool:
    if node.op_type in ("Relu", "Clip"):
        low = clip_bounds(node)[0]
        return low is not None and low >= 0.0
    traits = traits_of(node)
    if traits is None or not (_keeps_range(node, traits) or node.op_type in ("Add", "Sum", "Mul")):
        return False
    inputs = node.inputs if traits.data is None else [node.inputs[index] for index in traits.data]
    return all(value is not None and value.name in known for value in inputs)


def _keeps_range(node: ir.Node, traits: OpTraits) -> bool:
    """Whether no output is outside the range of the inputs and zero."""
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") in ("nearest", "linear")
    kinds = (Kind.MOVES, Kind.CONCATENATES, Kind.AVERAGES)
    return traits.kind in kinds and moves_exactly(node)


def reduced_axes(node: ir.Node) -> list[int] | None:
    """Return the axes of a reduction, counted from the front, or ``None`` if they are not known."""
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    rank = len(source.shape)
    given = constant_integers(node, 1)
    if given is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        return None
    axes = node.attributes.get_ints("axes", ()) if given is None else given
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        return []
    return sorted(axis % rank for axis in axes) or list(range(rank))


def spatial_size(value: ir.Value) -> tuple[int, int] | None:
    """Return height and width of a 4-D value, if they are known."""
    if value.shape is None or len(value.shape) != 4:
        return None
    height, width = value.shape[2], value.shape[3]
    if isinstance(height, int) and isinstance(width, int):
        return height, width
    return None


def constant_integers(node: ir.Node, index: int) -> list[int] | None:
    """Return a constant input as integers, or ``None`` if it is computed or absent."""
    data = constant(node.inputs[index]) if index < len(node.inputs) else None
    return None if data is None else [int(number) for number in data.reshape(-1)]
