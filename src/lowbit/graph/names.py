"""The names a user knows a node by, kept through every fusion."""

from __future__ import annotations

import onnx_ir as ir

_KEY = "lowbit.aliases"


def names_of(node: ir.Node) -> tuple[str, ...]:
    """Return every name of the node: its own, those fused into it, and its outputs'."""
    own = (node.name,) if node.name else ()
    outputs = tuple(value.name for value in node.outputs if value.name)
    return tuple(dict.fromkeys((*own, *node.meta.get(_KEY, ()), *outputs)))


def answer_to(node: ir.Node, *names: str | None) -> None:
    """Let ``node`` answer to further names as well. Changes ``node``."""
    given = (name for name in names if name)
    node.meta[_KEY] = tuple(dict.fromkeys((*node.meta.get(_KEY, ()), *given)))


def absorb(survivor: ir.Node, gone: ir.Node) -> None:
    """Let ``survivor`` answer to the names of ``gone`` as well. Changes ``survivor``."""
    answer_to(survivor, *names_of(survivor)[:1], *names_of(gone))


def tensor_name(value: ir.Value) -> str:
    """Return the name of a value of a normalized model, where every value has one."""
    if value.name is None:
        raise ValueError("a normalized model has named values")
    return value.name
