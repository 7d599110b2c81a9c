"""A description of a model, and what each target would do with it."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.text import Text

from lowbit.errors import visible
from lowbit.report.tables import Name, counted, make_facts, make_table, show, size


class TensorShape(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output: its name, element type and shape."""

    name: str
    dtype: str
    shape: str


class TargetOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """The number of nodes that a target would quantize with a preset, or why it can quantize none.

    ``reason`` is the commonest reason why nodes stay in float.
    """

    target: str
    preset: str
    activations: int = 0
    weights: int = 0
    nodes: int = 0
    float_nodes: int = 0
    reason: str = ""
    refused: str = ""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """A description of a model without running it.

    ``not_loaded`` says why onnxruntime cannot load it, if it cannot.
    """

    model: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]
    operators: dict[str, int]
    constants: int
    constant_bytes: int
    quantized_tensors: int
    not_loaded: str = ""
    targets: tuple[TargetOutlook, ...]


_MOST_OPERATORS = 12


def show_inspection(console: Console, found: Inspection, *, everything: bool) -> None:
    """Print what the model is, and a row for each target."""
    facts = make_facts()
    facts.add_row("model", Name(found.model))
    facts.add_row("made by", f"{found.producer or 'unknown'}, IR version {found.ir_version}")
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    facts.add_row("opset", opsets)
    parameters = counted(found.constants, "parameter")
    facts.add_row("constants", f"{parameters}, {size(found.constant_bytes)}")
    for label, tensors in (("inputs", found.inputs), ("outputs", found.outputs)):
        facts.add_row(label, "\n".join(f"{t.name}: {t.dtype} {t.shape}" for t in tensors))
    facts.add_row("nodes", _operators(found.operators, everything=everything))
    if found.quantized_tensors:
        pairs = counted(found.quantized_tensors, "quantizer")
        facts.add_row("quantized", f"already, with {pairs}: give `lowbit quantize` the float model")
    if found.not_loaded:
        facts.add_row("runs", Text(visible(f"not at all: {found.not_loaded}")))
    show(console, facts)
    if len({row.refused for row in found.targets} - {""}) == 1 and all(
        r.refused for r in found.targets
    ):
        console.print(Text(visible(f"No target takes it: {found.targets[0].refused}.")))
        return
    table = make_table(
        "what each target would do (quantized: activations + weights)",
        "target",
        "preset",
        "quantized",
        "in float",
    )
    for row in found.targets:
        if row.refused:
            table.add_row(row.target, row.preset, "", Text(visible(row.refused)))
            continue
        left = f"{row.float_nodes} of {row.nodes} nodes"
        reason = f", mostly: {row.reason}" if row.float_nodes else ""
        quantized = f"{row.activations} + {row.weights}"
        # A sentence without its middle says nothing: it takes several lines where it must.
        table.add_row(row.target, row.preset, quantized, Text(visible(f"{left}{reason}")))
    show(console, table)
    console.print("`lowbit plan MODEL --preset NAME` says why, node by node.")


def _operators(counts: dict[str, int], *, everything: bool) -> str:
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = ranked if everything else ranked[:_MOST_OPERATORS]
    left = len(ranked) - len(shown)
    more = f" and {counted(left, 'operator')} more (--all)" if left else ""
    return f"{sum(counts.values())}: " + ", ".join(f"{n} {op}" for op, n in shown) + more
