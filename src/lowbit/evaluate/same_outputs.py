"""Check that a quantized model has the float model's outputs: shapes, types, finite values.

How near the numbers are is a matter of degree. A changed shape or type, or a NaN that the float
model does not have, is another function, whatever any ratio says.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from lowbit.errors import VerificationError
from lowbit.graph.editing import node_inputs
from lowbit.graph.nesting import subgraphs
from lowbit.graph.session import Array
from lowbit.numerics.formats import is_float_type
from lowbit.ops.families import READ_SHAPES, SIZED_BY_DATA

_WAY_OUT = (
    "so it is another function. Is it made from this float model? If so keep the nodes before that "
    "output in float (--exclude), and please report the model"
)


def arrays_of(name: str, value: object) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of an output with their names: ``y``, or ``y[0 of 2]`` of a sequence.

    Sequences of other lengths have other names, and so has an optional that is empty.
    """
    if isinstance(value, np.ndarray):
        yield name, value
    elif value is None or (isinstance(value, (list, dict)) and not value):
        yield f"{name}[none]", np.zeros(0, np.float32)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from arrays_of(f"{name}[{key!r}]", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from arrays_of(f"{name}[{index} of {len(value)}]", item)
    else:
        yield name, np.asarray(value)


def outputs_sized_by_data(model: ir.Model) -> frozenset[str]:
    """Return the outputs whose shapes follow from numbers: how many boxes are left, for one."""
    moving: set[ir.Value] = {value for value in model.graph.inputs if not value.is_initializer()}
    sized: set[ir.Value] = set()
    for node in model.graph:
        read = set(node_inputs(node))
        if node.op_type not in READ_SHAPES and read & moving:
            moving.update(node.outputs)
        if read & sized or (_chooses_sizes(node, moving) and read & moving):
            sized.update(node.outputs)
    return frozenset(str(value.name) for value in model.graph.outputs if value in sized)


def _chooses_sizes(node: ir.Node, moving: Container[ir.Value]) -> bool:
    """Whether numbers that a node reads may decide how many it writes."""
    if node.op_type != "If":
        return node.op_type in SIZED_BY_DATA or _rounds_to_integers(node)
    # Which branch is taken is the condition's choice; a constant one leaves it to the branch.
    inner = (
        each for graph in subgraphs(node) for each in ir.traversal.RecursiveGraphIterator(graph)
    )
    return node.inputs[0] in moving or any(_chooses_sizes(each, moving) for each in inner)


def _rounds_to_integers(node: ir.Node) -> bool:
    """Whether sizes may be computed from what this node makes of floats."""
    kind = ir.DataType(node.attributes.get_int("to", 0)) if node.op_type == "Cast" else None
    return kind in (ir.DataType.INT32, ir.DataType.INT64)


def check_same_outputs(
    want: Mapping[str, Array],
    got: Mapping[str, Array],
    *,
    types: bool = True,
    sized_by_data: Container[str] = (),
) -> None:
    """Raise if an output of the quantized model has another shape, or is not finite any more.

    ``types``: or if it is of another type. Outputs that are ``sized_by_data`` may have other sizes.
    """
    for name, array in want.items():
        if _base(name) in sized_by_data and (name not in got or _is_resized(array, got[name])):
            continue
        if name not in got:
            raise VerificationError(
                f"the quantized model gives no {name!r}, but a sequence of another length: "
                f"{_WAY_OUT}"
            )
        problem = (types and changed_type(array, got[name])) or difference(array, got[name])
        if problem:
            raise VerificationError(f"output {name!r} {problem} in the quantized model: {_WAY_OUT}")


def _base(name: str) -> str:
    return name.rpartition("[")[0] if name.endswith("]") else name


def _is_resized(want: Array, got: Array) -> bool:
    """Whether two arrays differ in sizes alone."""
    return want.dtype == got.dtype and want.ndim == got.ndim and want.shape != got.shape


def changed_type(want: Array, got: Array) -> str:
    """Return how the type of an output differs from the float model's, or nothing."""
    if want.dtype == got.dtype or want.dtype.kind == got.dtype.kind == "U":
        return ""
    return f"is of type {want.dtype} in the float model and {got.dtype}"


def difference(want: Array, got: Array) -> str:
    """Return how an output differs from the float model's in more than numbers, or nothing."""
    if want.shape != got.shape:
        return f"has shape {list(want.shape)} in the float model and {list(got.shape)}"
    if not is_float(want):
        return ""
    expected, found = np.asarray(want, np.float32), np.asarray(got, np.float32)
    finite = np.isfinite(expected)
    broken = int(np.count_nonzero(finite & ~np.isfinite(found)))
    if broken:
        return f"is finite in the float model; {broken} of {want.size} values are NaN or Inf"
    lost = int(np.count_nonzero(np.isneginf(expected) & (expected != found)))
    if lost:
        return f"is minus infinity at {lost} places in the float model, as masks are, and not"
    return ""


def is_float(array: Array) -> bool:
    """Whether an array holds floating-point numbers of any width."""
    return is_float_type(array.dtype)


def is_number(array: Array) -> bool:
    """Whether an array holds integers or floating-point numbers of any width."""
    return is_float_type(array.dtype) or "int" in array.dtype.name


def finite_pair(want: Array, got: Array) -> tuple[Array, Array]:
    """Return both arrays in a type that can be computed with, where the float model's are finite."""
    want, got = (a.astype(np.float32) if a.dtype.kind == "V" else a for a in (want, got))
    if want.dtype.kind != "f":
        return want, got
    finite = np.isfinite(want)
    return (want, got) if finite.all() else (want[finite], got[finite])
