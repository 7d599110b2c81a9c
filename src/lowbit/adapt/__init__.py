"""Rewrite a float graph into what a target runs, by the names its data lists.

``transforms`` keep the function; ``arithmetic`` puts the device's own fixed-point approximations
in as nodes, so that what is calibrated, corrected and measured is what the device computes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir

from lowbit.adapt import arithmetic, transforms
from lowbit.adapt.splice import KEPT
from lowbit.errors import ConfigError, did_you_mean
from lowbit.graph.collecting import not_collecting

Rewrite = Callable[[ir.Graph], None]

REWRITES: Mapping[str, Rewrite] = MappingProxyType(
    {
        "reduce_mean_to_pool": transforms.reduce_mean_to_pool,
        "split_large_pool": transforms.split_large_pool,
        "split_to_slice": transforms.split_to_slice,
        "batchnorm_to_conv": transforms.batchnorm_to_conv,
        "leaky_relu_slope": arithmetic.leaky_relu_slope,
        "sigmoid_to_hardsigmoid": arithmetic.sigmoid_to_hardsigmoid,
        "hardsigmoid_factor": arithmetic.hardsigmoid_factor,
        "average_pool_factor": arithmetic.average_pool_factor,
        "reduce_mean_factor": arithmetic.reduce_mean_factor,
        "clip_to_relu": arithmetic.clip_to_relu,
    }
)


@not_collecting()
def adapt(
    model: ir.Model,
    names: Sequence[str],
    without: Sequence[str] = (),
    keep: Container[str] = (),
) -> ir.Model:
    """Return a copy of ``model`` with the named rewrites done, except those in ``without``.

    Nodes whose names are in ``keep`` stay as they are: what computes in float does not run on
    the device, so it does not get the device's arithmetic.
    """
    model = model.clone()
    for node in model.graph:
        node.meta[KEPT] = node.name in keep
    for name in (*names, *without):
        if name not in REWRITES:
            raise ConfigError(
                f"unknown rewrite {name!r}{did_you_mean(name, REWRITES)} "
                f"(known: {', '.join(REWRITES)})"
            )
    for name in names:
        if name not in without:
            REWRITES[name](model.graph)
    return model
