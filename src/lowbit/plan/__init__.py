"""Which tensor gets which spec, with which others it shares parameters, and why."""

from lowbit.plan.plan import AlignedGroup, BiasPlan, FloatNode, Plan, TensorPlan
from lowbit.plan.planner import make_plan

__all__ = ["AlignedGroup", "BiasPlan", "FloatNode", "Plan", "TensorPlan", "make_plan"]
