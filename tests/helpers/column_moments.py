"""Second moments from the columns themselves, beside those that are summed up in ``lowbit.refine``."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from lowbit.refine.descent import Moments


def moments_of(patches: Any, targets: Any, *, centred: bool) -> Moments:
    """Return the second moments of groups x depth x n inputs and groups x outputs x n outputs."""
    xp = array_namespace(patches)
    if centred:
        patches = patches - xp.mean(patches, axis=2, keepdims=True)
        targets = targets - xp.mean(targets, axis=2, keepdims=True)
    across = xp.matrix_transpose(patches)
    count = patches.shape[2]
    return Moments(xp.matmul(patches, across) / count, xp.matmul(targets, across) / count)
