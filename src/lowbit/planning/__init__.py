"""Which tensor gets which spec, with which others it shares parameters, and why."""

from __future__ import annotations

from lowbit.planning.plan import AlignedGroup, BiasPlan, FloatNode, Plan, TensorPlan
from lowbit.planning.planner import make_plan

__all__ = ["AlignedGroup", "BiasPlan", "FloatNode", "Plan", "TensorPlan", "make_plan"]
