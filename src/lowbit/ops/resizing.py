"""Interpolation as a matrix: what Resize does along one axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.numerics.formats import DoubleArray, FloatArray


def resizing_matrix(node: ir.Node, size: int, wanted: int) -> FloatArray | None:
    """Return the weights of inputs in each output along an axis; ``None`` if they are not known.

    Known are linear interpolation and the nearest input, without antialiasing or a region of interest.
    """
    attributes = node.attributes
    mode = attributes.get_string("mode", "nearest")
    if mode not in ("nearest", "linear") or attributes.get_int("antialias", 0) != 0:
        return None
    way = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    at = _positions(way, size, wanted)
    if at is None:
        return None
    matrix = np.zeros((wanted, size), np.float32)
    outputs = np.arange(wanted)
    if mode == "nearest":
        rounded = _rounded(at, attributes.get_string("nearest_mode", "round_prefer_floor"))
        if rounded is None:
            return None
        matrix[outputs, np.clip(rounded, 0, size - 1).astype(np.int64)] = 1
        return matrix
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    share = at - low
    np.add.at(matrix, (outputs, low), 1 - share)
    np.add.at(matrix, (outputs, np.minimum(low + 1, size - 1)), share)
    return matrix


def _positions(way: str, size: int, wanted: int) -> DoubleArray | None:
    """Return where among the inputs each output lies."""
    outputs, scale = np.arange(wanted, dtype=np.float64), size / wanted
    match way:
        case "half_pixel":
            return (outputs + 0.5) * scale - 0.5
        case "pytorch_half_pixel":
            return (outputs + 0.5) * scale - 0.5 if wanted > 1 else np.zeros(wanted)
        case "asymmetric":
            return outputs * scale
        case "align_corners":
            return outputs * ((size - 1) / (wanted - 1)) if wanted > 1 else np.zeros(wanted)
    return None


def _rounded(at: DoubleArray, way: str) -> DoubleArray | None:
    match way:
        case "round_prefer_floor":
            return np.ceil(at - 0.5)
        case "round_prefer_ceil":
            return np.floor(at + 0.5)
        case "floor":
            return np.floor(at)
        case "ceil":
            return np.ceil(at)
    return None
