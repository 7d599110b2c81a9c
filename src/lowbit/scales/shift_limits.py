"""The shift limits of a fixed-point datapath, met by changing fraction bits.

With every scale ``2**-f``, an operator's arithmetic is integer arithmetic and shifts by sums and
differences of fraction bits f; a shifter's width bounds them. Everything here happens on fraction
bits, before any weight or bias is quantized.

Fraction bits are lowered (scales coarsened) rather than raised wherever there is a choice: a coarser
scale costs precision, a finer one clips. Where lowering alone cannot do it, because a gate's input
must not be coarse, say, they are pulled together.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from lowbit.errors import CalibrationError
from lowbit.targets.target import ShiftLimits

_ROUNDS = 64
_COMMON = 7
"""Fraction bits at which every bound holds, if all tensors have this number."""

_ADD, _SUB, _MUL, _HARD_SIGMOID = "Add", "Sub", "Mul", "HardSigmoid"
ELEMENTWISE = (_ADD, _SUB, _MUL, _HARD_SIGMOID)
"""Operators with shift limits, other than the layers that accumulate."""

FractionBits = dict[str, int]
Move = Callable[[str, int, str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Limited:
    """One node whose fraction bits are bounded, by the names of its tensors."""

    node: str
    op_type: str
    inputs: tuple[str, ...]
    output: str
    weight: str | None = None
    has_bias: bool = False
    before_leaky_relu: bool = False
    is_swish: bool = False

    @property
    def reads_aligned(self) -> bool:
        """Whether it shifts what it reads to one position."""
        return self.op_type in (_ADD, _SUB)

    @property
    def is_addition(self) -> bool:
        """Whether it shifts a sum to write it."""
        return self.op_type == _ADD

    @property
    def is_product(self) -> bool:
        """Whether it shifts a product of two tensors to write it."""
        return self.op_type == _MUL and len(self.inputs) == 2

    @property
    def is_hard_sigmoid(self) -> bool:
        """Whether it is the gate that the datapath has in fixed point."""
        return self.op_type == _HARD_SIGMOID

    def tensors(self) -> tuple[str, ...]:
        """Return the names of all its tensors."""
        return (*self.inputs, self.output, *((self.weight,) if self.weight else ()))

    def renamed(self, names: Mapping[str, str]) -> Limited:
        """Return the same node with its tensors renamed."""
        return dataclasses.replace(
            self,
            inputs=tuple(names[name] for name in self.inputs),
            output=names[self.output],
            weight=names[self.weight] if self.weight else None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Adjusted:
    """A tensor whose fraction bits were changed, and for which bound."""

    tensor: str
    before: int
    after: int
    why: str


@dataclasses.dataclass(slots=True)
class _Component:
    """Nodes and groups that share tensors, so that their fraction bits are solved together."""

    names: list[str] = dataclasses.field(default_factory=list)
    nodes: list[Limited] = dataclasses.field(default_factory=list)
    groups: list[tuple[str, ...]] = dataclasses.field(default_factory=list)


def satisfy(
    nodes: Iterable[Limited],
    bits: FractionBits,
    groups: Iterable[tuple[str, ...]],
    limits: ShiftLimits,
    *,
    prefer_lowering: bool = True,
) -> tuple[FractionBits, list[Adjusted]]:
    """Return fraction bits that meet every bound and keep every group equal, and what was moved.

    A convolution with a weight of its own ties nothing together, as the weight's fraction bits make
    up for any difference of input and output: it comes last.
    """
    nodes = list(nodes)
    sharing = collections.Counter(n.weight for n in nodes if n.weight)
    tied = [n for n in nodes if n.weight is None or sharing[n.weight] > 1]
    last = [n for n in nodes if n.weight is not None and sharing[n.weight] == 1]
    solved, reasons = dict(bits), dict[str, str]()
    for component in _components(tied, groups):
        start = {name: bits[name] for name in component.names}
        for name, new, why in _solve(component, start, limits, prefer_lowering=prefer_lowering):
            solved[name], reasons[name] = new, why
    for node in last:
        _cut(node, solved, limits, _recording(solved, reasons))
    moved = [
        Adjusted(name, bits[name], solved[name], reasons[name])
        for name in bits
        if solved[name] != bits[name]
    ]
    return solved, moved


def _components(nodes: list[Limited], groups: Iterable[tuple[str, ...]]) -> list[_Component]:
    groups = list(groups)
    forest = _Forest()
    for tensors in (*(node.tensors() for node in nodes), *groups):
        forest.join(tensors)
    components: dict[str, _Component] = {}
    for name in forest:
        components.setdefault(forest.find(name), _Component()).names.append(name)
    for node in nodes:
        components[forest.find(node.output)].nodes.append(node)
    for members in groups:
        components[forest.find(members[0])].groups.append(members)
    return list(components.values())


class _Forest(dict[str, str]):
    """A union-find forest: each name points to another one of its component, up to the root."""

    def find(self, name: str) -> str:
        """Return the root of the component, and compress the path to it."""
        above = self.setdefault(name, name)
        while above != name:
            self[name] = self[above]
            name, above = above, self[above]
        return name

    def join(self, names: tuple[str, ...]) -> None:
        """Make one component of all that these names belong to."""
        first = self.find(names[0])
        for name in names[1:]:
            self[self.find(name)] = first


def _solve(
    component: _Component, bits: FractionBits, limits: ShiftLimits, *, prefer_lowering: bool
) -> list[tuple[str, int, str]]:
    """Return what must move, where to and why."""
    starts = [(bits, True)] if prefer_lowering else []
    starts.append((bits, False))
    if limits.contradictions == "pull":
        starts += [(pulled, True) for pulled in _pulled(bits)]
    broken: list[tuple[str, str]] = []
    for start, lowering in starts:
        trial, reasons = _settle(component, start, limits, lowering=lowering)
        now_broken = violations(component.nodes, trial, limits) + _unequal(component, trial)
        if not now_broken or (limits.contradictions == "keep" and (start, lowering) == starts[-1]):
            why = "pulled towards {!r}: its {}".format(*broken[0]) if broken else ""
            moved = [name for name in bits if trial[name] != bits[name]]
            return [(name, trial[name], reasons.get(name, why)) for name in moved]
        broken = broken or now_broken
    node, why = broken[0]
    raise CalibrationError(
        f"no scales satisfy the datapath at node {node!r} ({why}); keep it in float with "
        f"--exclude {node!r}"
    )


def _settle(
    component: _Component, start: FractionBits, limits: ShiftLimits, *, lowering: bool
) -> tuple[FractionBits, dict[str, str]]:
    """Return the fraction bits after sweeping until nothing moves, and why each moved."""
    trial, reasons = dict(start), dict[str, str]()
    for _ in range(_ROUNDS):
        before = dict(trial)
        _sweep(component, trial, limits, _recording(trial, reasons), lowering=lowering)
        if trial == before:
            break
    return trial, reasons


def _recording(bits: FractionBits, reasons: dict[str, str]) -> Move:
    def move(name: str, new: int, why: str) -> None:
        if bits[name] != new:
            bits[name], reasons[name] = new, why

    return move


def _pulled(bits: FractionBits) -> Iterable[FractionBits]:
    """Yield fraction bits ever closer to where all bounds hold, until one of them does."""
    widest = max(abs(own - _COMMON) for own in bits.values())
    for reach in range(widest - 1, -1, -1):
        low, high = _COMMON - reach, _COMMON + reach
        yield {name: min(max(p, low), high) for name, p in bits.items()}


def _unequal(component: _Component, bits: FractionBits) -> list[tuple[str, str]]:
    """Return the groups whose members differ, as a member and a description."""
    return [
        (members[0], f"number of fraction bits differs from that of {', '.join(members[1:])}")
        for members in component.groups
        if len({bits[name] for name in members}) > 1
    ]


def _sweep(
    component: _Component, bits: FractionBits, limits: ShiftLimits, move: Move, *, lowering: bool
) -> None:
    for members in component.groups:
        common = min(bits[name] for name in members)
        for name in members:
            move(name, common, "aligned with tensors that must have the same scale")
    for bound in (_read, _write, _cut, _hardsigmoid, _swish):
        for node in component.nodes:
            bound(node, bits, limits, move, lowering=lowering)


def _read(n: Limited, p: FractionBits, limits: ShiftLimits, move: Move, **_: bool) -> None:
    if not n.reads_aligned:
        return
    low = min(p[name] for name in n.inputs)
    for name in n.inputs:
        if p[name] - low > limits.read:
            move(name, low + limits.read, f"shift read of {n.op_type} {n.node}")


def _write(n: Limited, p: FractionBits, limits: ShiftLimits, move: Move, *, lowering: bool) -> None:
    if n.is_addition:
        bounds, total = limits.write_add, min(p[name] for name in n.inputs)
    elif n.is_product:
        bounds, total = limits.write_mul, sum(p[name] for name in n.inputs)
    else:
        return
    _fit_output(n, p, bounds, total, move, "shift write", lowering=lowering)


def _fit_output(
    n: Limited,
    p: FractionBits,
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
        if n.is_product:
            finest = max(n.inputs, key=lambda name: p[name])
            move(finest, p[finest] - excess, why)
        else:
            for name in n.inputs:
                move(name, min(p[name], p[n.output] + bounds[1]), why)


def _cut(n: Limited, p: FractionBits, limits: ShiftLimits, move: Move, **_: bool) -> None:
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


def bounded_bias(n: Limited, p: FractionBits, wanted: int, limits: ShiftLimits) -> int:
    """Return the nearest number of fraction bits of the bias that its shift allows.

    The bounds depend on the shift cut, so biases come last.
    """
    if n.weight is None:
        return wanted
    product = p[n.weight] + p[n.inputs[0]]
    cut = product - p[n.output]
    low = 0 if n.before_leaky_relu else min(0, -(limits.bias_width - (8 + cut)))
    return min(max(wanted, product - limits.bias_high), product - low)


def _hardsigmoid(n: Limited, p: FractionBits, limits: ShiftLimits, move: Move, **_: bool) -> None:
    if not n.is_hard_sigmoid:
        return
    source, why = n.inputs[0], f"fixed-point HardSigmoid {n.node}"
    low, high = limits.hardsigmoid_input
    move(source, min(max(p[source], low), high), why)
    move(n.output, max(p[n.output], limits.hardsigmoid_output_low), why)
    low, high = limits.hardsigmoid_shift
    shift = 14 + p[source] - p[n.output]
    if not low <= shift <= high:
        move(n.output, 14 + p[source] - (low if shift < low else high), why)


def _swish(n: Limited, p: FractionBits, limits: ShiftLimits, move: Move, *, lowering: bool) -> None:
    if n.is_swish:
        total = sum(p[name] for name in n.inputs)
        _fit_output(n, p, limits.swish, total, move, "shift swish", lowering=lowering)


def violations(
    nodes: Iterable[Limited], bits: FractionBits, limits: ShiftLimits
) -> list[tuple[str, str]]:
    """Return every bound that does not hold, as node and description."""
    return [(n.node, why) for n in nodes for why in _violations_of(n, bits, limits)]


def _violations_of(n: Limited, p: FractionBits, limits: ShiftLimits) -> Iterable[str]:
    inputs, output = [p[name] for name in n.inputs], p[n.output]
    checks: list[tuple[str, int, tuple[int, int]]] = []
    if n.reads_aligned:
        checks.append(("shift read", max(inputs) - min(inputs), (0, limits.read)))
    if n.is_addition:
        checks.append(("shift write", min(inputs) - output, limits.write_add))
    if n.is_product:
        checks.append(("shift write", sum(inputs) - output, limits.write_mul))
    if n.is_swish:
        checks.append(("shift swish", sum(inputs) - output, limits.swish))
    if n.weight is not None:
        checks.append(("shift cut", p[n.weight] + inputs[0] - output, limits.cut))
    if n.is_hard_sigmoid:
        checks.append(("fraction bits of the input", inputs[0], limits.hardsigmoid_input))
        checks.append(
            ("fraction bits of the output", output, (limits.hardsigmoid_output_low, 1 << 10))
        )
        checks.append(("hardsigmoid shift", 14 + inputs[0] - output, limits.hardsigmoid_shift))
    for what, value, (low, high) in checks:
        if not low <= value <= high:
            yield f"{what} is {value}, allowed {low}..{high}"
