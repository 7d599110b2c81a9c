"""The results of a run or a comparison, as values that print and save."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from lowbit.evaluate.accuracy import Accuracy
from lowbit.evaluate.latency import Latency
from lowbit.evaluate.shown_samples import ShownSample
from lowbit.evaluate.verdict import Verdict
from lowbit.numerics.metrics import SignalNoise
from lowbit.planning.plan import FloatNode
from lowbit.scales.parameters import Adjustment


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """Common settings."""


class SuggestedFix(_Value, frozen=True, kw_only=True):
    """A change that was tried, what it brings, and the line of configuration or the option that asks for it."""

    what: str
    config: str
    sqnr_db: float
    gain_db: float


class Cause(_Value, frozen=True, kw_only=True):
    """The cause of a tensor's error."""

    name: str
    detail: str


class BudgetRow(_Value, frozen=True, kw_only=True):
    """The contribution of one quantized tensor to the error of the outputs.

    Attributes:
        node: The node that reads it, of a weight: exporters call weights by numbers.
        own_sqnr_db: Signal to noise of the tensor itself, quantized from exact values.
        sensitivity: Noise of the outputs if only this tensor is quantized, as a share of all there is.
        recovered: Share of the noise that goes if only this tensor is in float. Below zero where
            its error makes up for another's.
        samples: How many samples the sensitivity was measured on; 0 where it is an estimate.
    """

    tensor: str
    kind: Literal["activation", "weight"]
    op_type: str
    node: str = ""
    format: str
    own_sqnr_db: float
    sensitivity: float
    recovered: float | None = None
    samples: int = 0
    causes: tuple[Cause, ...] = ()
    suggested_fixes: tuple[SuggestedFix, ...] = ()


class Promotion(_Value, frozen=True, kw_only=True):
    """Tensors promoted at once, the worst or those of a region: measured, not added up.

    ``words`` say which, and to what; ``requantized_sqnr_db`` is what a whole new run gives, if asked for.
    """

    words: str
    tensors: tuple[str, ...]
    sqnr_db: float
    gain_db: float
    noise_recovered: float
    config: str
    requantized_sqnr_db: float | None = None


class Budget(_Value, frozen=True, kw_only=True):
    """How the error of the outputs divides among the quantized tensors, and what the worst bring together."""

    sqnr_db: float
    samples: int
    measured: int
    estimated: int
    float_sqnr_db: float
    rows: tuple[BudgetRow, ...]
    promotion: Promotion | None = None
    region: Promotion | None = None

    @property
    def tried_together(self) -> tuple[Promotion, ...]:
        """Changes of several tensors at once, the one that gains most first."""
        return tuple(sorted(filter(None, (self.region, self.promotion)), key=lambda p: -p.gain_db))


class Histogram(_Value, frozen=True, kw_only=True):
    """Counts of values in equal bins between two ends."""

    low: float
    high: float
    counts: tuple[int, ...]


class TensorView(_Value, frozen=True, kw_only=True):
    """The values of a quantized tensor, for plots: distribution, limits, ranges of channels."""

    tensor: str
    kind: Literal["activation", "weight"]
    op_type: str
    format: str
    scale: float
    limits: tuple[float, float]
    range: tuple[float, float]
    clipped: float
    histogram: Histogram | None = None
    quantized_histogram: Histogram | None = None
    channel_low: tuple[float, ...] = ()
    channel_high: tuple[float, ...] = ()


class NetworkNode(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A node of the quantized model, Q/DQ pairs aside.

    Attributes:
        name: The node.
        op_type: Its operator.
        tensor: Its first output, as the float model calls it.
        inputs: The numbers of the nodes it reads.
        weights: Its quantized constants.
        format: What its output is quantized to; nothing where it stays in float.
        quantized: Whether it reads or gives quantized values.
    """

    name: str
    op_type: str
    tensor: str
    inputs: tuple[int, ...]
    weights: tuple[str, ...]
    format: str
    quantized: bool


class NetworkBlock(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The nodes from ``start`` to before ``end``, in smaller blocks if they are many."""

    title: str
    start: int
    end: int
    blocks: tuple[NetworkBlock, ...] = ()


class Network(_Value, frozen=True, kw_only=True):
    """The network as it is drawn: nodes in graph order, and the blocks they are folded into."""

    nodes: tuple[NetworkNode, ...]
    root: NetworkBlock


class PromotedRegion(_Value, frozen=True, kw_only=True):
    """Neighbouring nodes that got a wider format, so that the model is usable.

    ``multiply_adds`` and ``elements`` are their shares of the model's multiply-adds and of the numbers
    it writes.
    """

    first: str
    last: str
    nodes: int
    format: str
    multiply_adds: float
    elements: float
    why: str

    def describe(self) -> str:
        """Return it in words."""
        where = self.first if self.nodes == 1 else f"{self.nodes} nodes {self.first} .. {self.last}"
        return f"{where} to {self.format} ({self.multiply_adds:.0%} of the multiply-adds)"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How close one tensor of the quantized model is to the float one.

    ``upstream_db`` is the lowest SQNR of the tensors measured nearest before it, if that is known.
    """

    tensor: str
    sqnr_db: float
    cosine: float
    max_error: float
    upstream_db: float | None = None

    @classmethod
    def of(cls, tensor: str, measured: SignalNoise, upstream_db: float | None = None) -> Score:
        """Return the figures of a tensor."""
        return cls(
            tensor=tensor,
            sqnr_db=measured.sqnr_db,
            cosine=measured.cosine,
            max_error=measured.max_error,
            upstream_db=upstream_db,
        )

    @property
    def added_noise(self) -> float:
        """The noise that arises here, as a share of the signal; none where that is not known."""
        if self.upstream_db is None or math.isnan(self.sqnr_db):
            return 0.0
        return float(10 ** (-self.sqnr_db / 10) - 10 ** (-self.upstream_db / 10))


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step that may help or harm, and what it did on samples held out of calibration.

    ``before`` and ``after`` are the error of the outputs, relative to their power; ``note`` says
    what the step did, or why it was dropped.
    """

    name: str
    before: float
    after: float
    kept: bool
    note: str = ""


class Saturation(_Value, frozen=True, kw_only=True):
    """Whether kernels that add two products in 16 bits, as x86 without VNNI has them, can saturate.

    ``layers``: how many multiply 8-bit integers. ``saturating``: the names of those that can.
    """

    layers: int
    saturating: tuple[str, ...]

    def describe(self) -> str:
        """Return it in words."""
        if not self.saturating:
            return f"safe on x86 without VNNI ({self.layers} layers, no sum exceeds 16 bits)"
        return f"{len(self.saturating)} of {self.layers} layers can saturate on x86 without VNNI"


class GoalTrial(_Value, frozen=True, kw_only=True):
    """Something that was tried to reach a goal, and what it cost.

    Attributes:
        strategy: Where it comes from: the preset, calibration, reconstruction and so on.
        what: What was changed.
        value: The goal's figure on the samples of the search; none where nothing was measured.
        margin_db: How far the noise is below what the goal (or a usable model) allows; candidates are
            ranked by it.
        seconds: How long it took.
        outcome: Whether it became the best so far; ``met`` if it reached the goal.
        note: What was measured on held-out samples, or why it was not tried.
    """

    strategy: str
    what: str
    value: float | None
    margin_db: float | None
    seconds: float
    outcome: Literal["kept", "dropped", "met", "skipped"]
    note: str = ""


class GoalOutcome(_Value, frozen=True, kw_only=True):
    """Whether a goal was reached, how sure that is, and all that was tried.

    ``value``, ``low`` and ``high`` are of the model that was kept, on held-out samples, each end as sure
    as was asked for however often was looked; ``missing`` says what would be needed.
    """

    goal: str
    figure: str
    met: bool
    value: float
    low: float
    high: float
    confidence: float
    samples: int
    search_samples: int
    seconds: float
    budget: float | None = None
    missing: str = ""
    trials: tuple[GoalTrial, ...] = ()

    def describe(self) -> str:
        """Return it in words."""
        bound = self.high if "<" in self.goal else self.low
        word = "at most" if "<" in self.goal else "at least"
        text = (
            f"{self.figure} {self.value:.4g}, {word} {bound:.4g} with {self.confidence:.0%} confidence "
            f"on {self.samples} samples not used for the search"
        )
        return text if self.met else f"{text}; {self.missing}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run; ``outputs`` are against the model as it was loaded.

    ``speed`` says where the model is slow, if that is known beforehand; ``doubts`` why its figures may
    say little, which is shown with the verdict.
    ``reused_statistics``: it was calibrated by an earlier run.
    ``slices`` are runs of channels of outputs that hold values of different magnitudes; ``fused`` are the
    outputs through the int8 kernels of ``runtime``, where all else is exact.
    """

    preset: str
    target: str
    version: str
    data: str
    calibration_samples: int
    verification_samples: int
    held_out: bool
    outputs: tuple[Score, ...]
    verdict: Verdict | None = None
    doubts: tuple[str, ...] = ()
    reused_statistics: bool = False
    saturation: Saturation | None = None
    speed: str = ""
    layers: tuple[Score, ...] = ()
    quantized: dict[str, int] = {}
    float_nodes: tuple[FloatNode, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()
    steps: tuple[Step, ...] = ()
    promoted: tuple[PromotedRegion, ...] = ()
    goal: GoalOutcome | None = None
    notes: tuple[str, ...] = ()
    size_before: int = 0
    size_after: int = 0
    seconds: dict[str, float] = {}
    slices: tuple[Score, ...] = ()
    fused: tuple[Score, ...] = ()
    runtime: str = "onnxruntime"
    accuracy: tuple[Accuracy, ...] = ()
    budget: Budget | None = None
    latency: Latency | None = None
    tensors: tuple[TensorView, ...] = ()
    network: Network | None = None
    samples: tuple[ShownSample, ...] = ()

    def __repr__(self) -> str:
        """Return a line or two: all of it is in ``to_json``."""
        held = "held-out samples" if self.held_out else "samples, also calibrated on"
        figures = f"{self.sqnr_db:.2f} dB on {self.verification_samples} {held}"
        if self.verdict is not None:
            figures = f"{self.verdict.level} ({self.verdict.describe()}), {self.sqnr_db:.2f} dB"
        sizes = f"{self.size_before / 1e6:.1f} -> {self.size_after / 1e6:.1f} MB"
        return f"Report({self.preset} for {self.target}: {figures}, {sizes})"

    @property
    def sqnr_db(self) -> float:
        """The SQNR of the worst output."""
        return min((score.sqnr_db for score in self.outputs), default=math.nan)

    @property
    def worst_slice_db(self) -> float:
        """The same, where an output holds values of different magnitudes that of its worst slice."""
        return min((score.sqnr_db for score in (*self.outputs, *self.slices)), default=math.nan)

    def worst_layers(self, count: int = 5) -> tuple[Score, ...]:
        """Return the layers with the lowest SQNR."""
        return tuple(sorted(self.layers, key=lambda score: score.sqnr_db)[:count])

    def error_sources(self, count: int = 5) -> tuple[Score, ...]:
        """Return the layers that add most noise to what they are computed from."""
        found = sorted((s for s in self.layers if s.added_noise > 0), key=lambda s: -s.added_noise)
        return tuple(found[:count])

    def to_json(self) -> bytes:
        """Return the report as JSON; an infinite ratio is null."""
        return msgspec.json.encode(_finite(msgspec.to_builtins(self)))


def scores(
    by_name: Mapping[str, SignalNoise], upstream: Mapping[str, float] | None = None
) -> tuple[Score, ...]:
    """Return the figures of many tensors, in their order; ``upstream`` are SQNRs before them."""
    before = upstream or {}
    return tuple(Score.of(name, found, before.get(name)) for name, found in by_name.items())


def count_formats(formats: Iterable[str]) -> dict[str, int]:
    """Return how often each word comes."""
    counts: dict[str, int] = {}
    for word in formats:
        counts[word] = counts.get(word, 0) + 1
    return counts


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
