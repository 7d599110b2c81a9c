"""Ranges from elsewhere than the samples: a file of an earlier run, or a tensor upstream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from lowbit.config.specs import IntegerSpec, TensorOverride
from lowbit.graph.editing import constant_shape
from lowbit.ops.linear import linear_operator
from lowbit.quark import __version__
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.translate.options import ExtraOptions
from lowbit.quark.translate.selection import Nodes, inputs_of, outputs_of
from lowbit.scales.ranges import chosen_range
from lowbit.state import Calibrated

_RANGES = "tensors_range"


def range_file(options: ExtraOptions) -> Path | None:
    """Return the file that ranges are kept in, by the newer or the older name of the option."""
    given = options.SaveAndRestore or options.TensorsRangeFile
    return Path(given) if given else None


def given_ranges(options: ExtraOptions, nodes: Nodes) -> tuple[TensorOverride, ...]:
    """Return what ranges are known beforehand: from a file, or from tensors upstream."""
    path = range_file(options)
    restored = _read(path) if path is not None and path.exists() else {}
    fixed = (TensorOverride(tensor=t, range=r, optional=True) for t, r in restored.items())
    passed = passed_through(options.CalibPassthroughOpTypes or (), nodes)
    return (
        *fixed,
        *(TensorOverride(tensor=t, observe=o, optional=True) for t, o in passed.items()),
    )


def passed_through(op_types: Sequence[str], nodes: Nodes) -> dict[str, str]:
    """Return, for outputs of some operators, the tensor upstream whose values they pass on."""
    producers = {name: node for node in nodes.nodes for name in outputs_of(node)}
    sources: dict[str, str] = {}
    for node in nodes.of_types(op_types):
        source = _source(node, producers, set(op_types))
        if source is not None and source not in nodes.constants:
            sources.update(dict.fromkeys(outputs_of(node), source))
    return sources


def _source(node: ir.Node, producers: Mapping[str, ir.Node], passing: set[str]) -> str | None:
    inputs = inputs_of(node)
    while inputs:
        producer = producers.get(inputs[0])
        if producer is None or producer.op_type not in passing:
            return inputs[0]
        inputs = inputs_of(producer)
    return None


def save_ranges(path: Path, state: Calibrated) -> None:
    """Write the ranges of all integer activations, in Quark's file format."""
    ranges = {
        t.name: t.range or chosen_range(state.stats[t.observe], t.spec, t.name)
        for t in state.plan.activations()
        if isinstance(t.spec, IntegerSpec) and t.leader == t.name
    }
    content = {"quark_version": __version__, _RANGES: ranges}
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _read(path: Path) -> dict[str, tuple[float, float]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(content[_RANGES], dict[str, tuple[float, float]])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QuarkConfigError(
            f"{path} is no file of ranges ({type(error).__name__}: {error}); expected JSON with "
            f"{_RANGES!r}: {{tensor: [low, high]}}. Remove it, and a run writes it anew"
        ) from error


def check_channel_axes(given: Mapping[str, int], nodes: Nodes) -> None:
    """Raise where scales per channel would not lie along the outputs of a layer."""
    for node in nodes.of_types(given):
        row, asked = linear_operator(node), given[node.op_type]
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        shape: Any = None if weight is None else constant_shape(weight)
        if row is None or not shape:
            continue
        own = row.channel_axis(node) % len(shape)
        if asked % len(shape) != own:
            raise NotSupportedError(
                f"QDQOpTypePerChannelSupportToAxis: axis {asked} for {node.op_type}, but the outputs "
                f"of {node.name!r} lie along axis {own} of its weights, and scales along another "
                "fit no bias; leave the option out"
            )
