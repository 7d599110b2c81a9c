"""Plans of graphs written as text."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest
from helpers.planned_models import normalized_graph, plan_for

from lowbit.planning import Plan


@pytest.fixture
def graph_of() -> Callable[..., ir.Model]:
    """Return what makes a normalized model from inputs, nodes and constants as ONNX text."""
    return normalized_graph


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    """Return what plans a model in int8 for a target."""
    return plan_for
