"""The bounds of a fixed-point datapath, met by moving binary points.

With every scale ``2**-p``, an operator's arithmetic is integer arithmetic and shifts by sums and
differences of positions p; a shifter's width bounds them. Everything here happens on positions,
before any weight or bias is quantized.

Positions are lowered (scales coarsened) rather than raised wherever there is a choice: a coarser
scale costs precision, a finer one clips.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from lowbit.errors import CalibrationError
from lowbit.targets.target import ShiftLimits

_ROUNDS = 64

Positions = dict[str, int]
Move = Callable[[str, int, str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Limited:
    """One node whose positions are bounded, by the names of its tensors."""

    node: str
    op_type: str
    inputs: tuple[str, ...]
    output: str
    weight: str | None = None
    has_bias: bool = False
    before_leaky_relu: bool = False
    is_swish: bool = False

    def tensors(self) -> tuple[str, ...]:
        """Return the names of all its tensors."""
        return (*self.inputs, self.output, *((self.weight,) if self.weight else ()))

    def renamed(self, names: Mapping[str, str]) -> Limited:
        """Return the same node with its tensors called otherwise."""
        return dataclasses.replace(
            self,
            inputs=tuple(names[name] for name in self.inputs),
            output=names[self.output],
            weight=names[self.weight] if self.weight else None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """A position that was changed, and for which bound."""

    tensor: str
    before: int
    after: int
    why: str


def satisfy(
    nodes: Iterable[Limited],
    positions: Positions,
    groups: Iterable[tuple[str, ...]],
    limits: ShiftLimits,
    *,
    prefer_lowering: bool = True,
) -> tuple[Positions, list[Moved]]:
    """Return positions that meet every bound and keep every group equal, and what was moved."""
    nodes, groups = list(nodes), list(groups)
    attempts = (True, False) if prefer_lowering else (False,)
    for lowering in attempts:
        trial = dict(positions)
        reasons: dict[str, str] = {}
        for _ in range(_ROUNDS):
            before = dict(trial)
            _sweep(nodes, trial, groups, limits, reasons, lowering=lowering)
            if trial == before:
                break
        if not (broken := violations(nodes, trial, limits)):
            moved = [
                Moved(name, positions[name], trial[name], reasons.get(name, "kept equal"))
                for name in positions
                if trial[name] != positions[name]
            ]
            return trial, moved
    node, why = broken[0]
    raise CalibrationError(
        f"no scales satisfy the datapath at node {node!r} ({why}); keep it in float with "
        f"--exclude {node!r}"
    )


def _sweep(
    nodes: list[Limited],
    positions: Positions,
    groups: list[tuple[str, ...]],
    limits: ShiftLimits,
    reasons: dict[str, str],
    *,
    lowering: bool,
) -> None:
    def move(name: str, position: int, why: str) -> None:
        if positions[name] != position:
            positions[name] = position
            reasons[name] = why

    for members in groups:
        common = min(positions[name] for name in members)
        for name in members:
            move(name, common, "kept equal with the tensors it is joined to")
    for bound in (_read, _write, _cut, _hardsigmoid, _swish):
        for node in nodes:
            bound(node, positions, limits, move, lowering=lowering)


def _read(n: Limited, p: Positions, limits: ShiftLimits, move: Move, **_: bool) -> None:
    if n.op_type not in ("Add", "Sub") or len(n.inputs) < 2:
        return
    low = min(p[name] for name in n.inputs)
    for name in n.inputs:
        if p[name] - low > limits.read:
            move(name, low + limits.read, f"shift read of {n.op_type} {n.node}")


def _write(n: Limited, p: Positions, limits: ShiftLimits, move: Move, *, lowering: bool) -> None:
    if n.op_type == "Add":
        bounds, total = limits.write_add, min(p[name] for name in n.inputs)
    elif n.op_type == "Mul" and len(n.inputs) == 2:
        bounds, total = limits.write_mul, sum(p[name] for name in n.inputs)
    else:
        return
    _fit_output(n, p, bounds, total, move, "shift write", lowering=lowering)


def _fit_output(
    n: Limited,
    p: Positions,
    bounds: tuple[int, int],
    total: int,
    move: Move,
    what: str,
    *,
    lowering: bool,
) -> None:
    """Bring ``total - output`` into bounds: by the output, or by inputs if that would raise it."""
    shift, why = total - p[n.output], f"{what} of {n.op_type} {n.node}"
    if shift < bounds[0]:
        move(n.output, total - bounds[0], why)
    elif shift > bounds[1] and not lowering:
        move(n.output, total - bounds[1], why)
    elif shift > bounds[1]:
        excess = shift - bounds[1]
        if n.op_type == "Mul":
            finest = max(n.inputs, key=lambda name: p[name])
            move(finest, p[finest] - excess, why)
        else:
            for name in n.inputs:
                move(name, min(p[name], p[n.output] + bounds[1]), why)


def _cut(n: Limited, p: Positions, limits: ShiftLimits, move: Move, **_: bool) -> None:
    if n.weight is None:
        return
    shift = p[n.weight] + p[n.inputs[0]] - p[n.output]
    low, high = limits.cut
    if not low <= shift <= high:
        bound = low if shift < low else high
        move(
            n.weight,
            bound + p[n.output] - p[n.inputs[0]],
            f"shift cut of {n.op_type} {n.node}",
        )


def bounded_bias(n: Limited, p: Positions, position: int, limits: ShiftLimits) -> int:
    """Return the nearest position of the bias that its shift allows.

    The bounds depend on the shift cut, so biases come last.
    """
    if n.weight is None:
        return position
    product = p[n.weight] + p[n.inputs[0]]
    cut = product - p[n.output]
    low = 0 if n.before_leaky_relu else min(0, -(limits.bias_width - (8 + cut)))
    return min(max(position, product - limits.bias_high), product - low)


def _hardsigmoid(n: Limited, p: Positions, limits: ShiftLimits, move: Move, **_: bool) -> None:
    if n.op_type != "HardSigmoid":
        return
    source, why = n.inputs[0], f"fixed-point HardSigmoid {n.node}"
    low, high = limits.hardsigmoid_input
    move(source, min(max(p[source], low), high), why)
    move(n.output, max(p[n.output], limits.hardsigmoid_output_low), why)
    low, high = limits.hardsigmoid_shift
    shift = 14 + p[source] - p[n.output]
    if not low <= shift <= high:
        move(n.output, 14 + p[source] - (low if shift < low else high), why)


def _swish(n: Limited, p: Positions, limits: ShiftLimits, move: Move, *, lowering: bool) -> None:
    if n.is_swish:
        total = sum(p[name] for name in n.inputs)
        _fit_output(n, p, limits.swish, total, move, "shift swish", lowering=lowering)


def violations(
    nodes: Iterable[Limited], positions: Positions, limits: ShiftLimits
) -> list[tuple[str, str]]:
    """Return every bound that does not hold, as node and description."""
    return [(n.node, why) for n in nodes for why in _violations_of(n, positions, limits)]


def _violations_of(n: Limited, p: Positions, limits: ShiftLimits) -> Iterable[str]:
    inputs, output = [p[name] for name in n.inputs], p[n.output]
    checks: list[tuple[str, int, tuple[int, int]]] = []
    if n.op_type in ("Add", "Sub"):
        checks.append(("shift read", max(inputs) - min(inputs), (0, limits.read)))
    if n.op_type == "Add":
        checks.append(("shift write", min(inputs) - output, limits.write_add))
    if n.op_type == "Mul" and len(inputs) == 2:
        checks.append(("shift write", sum(inputs) - output, limits.write_mul))
    if n.is_swish:
        checks.append(("shift swish", sum(inputs) - output, limits.swish))
    if n.weight is not None:
        checks.append(("shift cut", p[n.weight] + inputs[0] - output, limits.cut))
    if n.op_type == "HardSigmoid":
        checks.append(("input position", inputs[0], limits.hardsigmoid_input))
        checks.append(("output position", output, (limits.hardsigmoid_output_low, 1 << 10)))
        checks.append(("hardsigmoid shift", 14 + inputs[0] - output, limits.hardsigmoid_shift))
    for what, value, (low, high) in checks:
        if not low <= value <= high:
            yield f"{what} is {value}, allowed {low}..{high}"
