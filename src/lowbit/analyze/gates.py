"""Gates for continuous integration: figures of a report held against limits."""

from __future__ import annotations

import dataclasses
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence

from lowbit.errors import ConfigError, GateError, did_you_mean
from lowbit.evaluate.conditions import Condition, read_condition
from lowbit.report.values import Report


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """A condition under which a comparison fails, such as ``top1_drop>1``."""

    condition: Condition

    @property
    def text(self) -> str:
        """The gate as it was written."""
        return self.condition.text

    @property
    def figure(self) -> str:
        """The figure that it names."""
        return self.condition.figure

    def fails(self, value: float) -> bool:
        """Whether a value meets the condition; one that is no number always does."""
        return math.isnan(value) or self.condition.holds(value)


def read_gate(text: str) -> Gate:
    """Return the gate in a text: a figure, ``<``, ``<=``, ``>`` or ``>=``, and a number."""
    return Gate(read_condition(text, "gate", "top1_drop>1"))


def figures_of(report: Report) -> dict[str, float]:
    """Return every figure of a report that a gate can name."""
    scores = (*report.outputs, *report.slices)
    found = {
        "sqnr": report.worst_slice_db,
        "cosine": min((s.cosine for s in scores), default=math.nan),
        "max_error": max((s.max_error for s in scores), default=math.nan),
    }
    if report.fused:
        found["fused_sqnr"] = min(s.sqnr_db for s in report.fused)
    if report.layers:
        found["layer_sqnr"] = min(s.sqnr_db for s in report.layers)
    if report.size_before:
        found["size_ratio"] = report.size_after / report.size_before
    if report.latency is not None:
        found["time_ratio"] = report.latency.quantized_ms / report.latency.float_ms
        found["quantized_ms"] = report.latency.quantized_ms
    for row in report.accuracy:
        found[row.name] = row.quantized_score
        found[f"{row.name}_drop"] = row.gap
        found[f"{row.name}_drop_high"] = row.high
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A gate and the figure it was held against."""

    gate: Gate
    value: float

    @property
    def failed(self) -> bool:
        """Whether the gate is closed."""
        return self.gate.fails(self.value)


def try_gates(gates: Iterable[Gate], report: Report) -> tuple[Outcome, ...]:
    """Return how each gate comes out; one that names no figure of the report is an error."""
    known = figures_of(report)
    outcomes = []
    for gate in gates:
        if gate.figure not in known:
            raise ConfigError(
                f"gate {gate.text!r} names {gate.figure!r}, which this comparison does not have"
                f"{did_you_mean(gate.figure, known)} (it has {', '.join(known)}; accuracy needs "
                "--labels or --metric, time_ratio needs --time)"
            )
        outcomes.append(Outcome(gate, known[gate.figure]))
    return tuple(outcomes)


def refuse_failed(outcomes: Sequence[Outcome]) -> None:
    """Raise if a gate is closed, and name all that are."""
    failed = [f"{o.gate.text} ({o.gate.figure} is {o.value:.4g})" for o in outcomes if o.failed]
    if failed:
        raise GateError(f"{len(failed)} of {len(outcomes)} gates failed: {'; '.join(failed)}")


def to_junit(outcomes: Sequence[Outcome], name: str, seconds: float) -> bytes:
    """Return the outcomes as JUnit XML, a test case for each gate."""
    failures = sum(outcome.failed for outcome in outcomes)
    suite = ET.Element(
        "testsuite",
        name="lowbit compare",
        tests=str(len(outcomes)),
        failures=str(failures),
        errors="0",
        skipped="0",
        time=f"{seconds:.3f}",
    )
    for outcome in outcomes:
        case = ET.SubElement(
            suite, "testcase", classname=name, name=f"fail if {outcome.gate.text}", time="0"
        )
        text = f"{outcome.gate.figure} is {outcome.value:.6g}"
        if outcome.failed:
            ET.SubElement(case, "failure", message=f"{outcome.gate.text}: {text}").text = text
        else:
            ET.SubElement(case, "system-out").text = text
    document: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return document
