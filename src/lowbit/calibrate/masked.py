"""Tensors without what is computed at padding, of models that fix the length of sequences.

Where a model takes any length, its samples have no padding to begin with (``lowbit.data.padding``). Elsewhere the mask
says at which positions of a sample there is any; what is computed there reaches no output and decides no range.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lowbit.data.inputs import InputInfo
from lowbit.data.text import has_role
from lowbit.graph.session import Feed
from lowbit.numerics.formats import FloatArray

Kept = NDArray[np.bool_]


def mask_input(inputs: Sequence[InputInfo]) -> str:
    """Return the input that says which tokens count, sequences x tokens; nothing if none or several do."""
    tokens = [info.shape for info in inputs if has_role(info, "tokens")]
    found = [i.name for i in inputs if has_role(i, "mask") and len(i.shape or ()) == 2]
    shapes = [info.shape for info in inputs if info.name in found]
    return found[0] if len(found) == 1 and shapes[0] in tokens else ""


def kept_tokens(feed: Feed, mask: str) -> Kept | None:
    """Return which tokens of a sample count; nothing if all do, or none of some sequence."""
    if not mask or mask not in feed:
        return None
    kept = np.asarray(feed[mask]) != 0
    return None if kept.all() or not kept.any(axis=1).all() else kept


def without_padding(array: FloatArray, kept: Kept | None) -> FloatArray:
    """Return an array without padding, its rank kept; as it is where no axes are those of the tokens.

    Tokens lie along the second axis, along the third after that of heads, or along the first with their
    sequences.
    """
    if kept is None:
        return array
    count, length = kept.shape
    if array.ndim == 2 and len(array) == kept.size and array.shape != kept.shape:
        return array[kept.reshape(-1)]
    if array.ndim >= 3 and array.shape[:2] == (count, length):
        return array[kept][None]
    if array.ndim == 4 and (array.shape[0], array.shape[2]) == (count, length):
        return array.swapaxes(1, 2)[kept][None].swapaxes(1, 2)
    return array
