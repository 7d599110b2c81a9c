"""What a comparison finds out beyond the distance of tensors, as values that print and save."""

from __future__ import annotations

from typing import Literal

import msgspec


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """Common settings of the value types below."""


class Mend(_Value, frozen=True, kw_only=True):
    """A change that was tried, and what the worst output would then have.

    ``config`` is a line for a configuration file, or the option to give.
    """

    what: str
    config: str
    snr_db: float
    gain_db: float


class Cause(_Value, frozen=True, kw_only=True):
    """Why a tensor loses what it loses."""

    name: str
    detail: str


class BudgetRow(_Value, frozen=True, kw_only=True):
    """What one quantized tensor adds to the error of the outputs.

    Attributes:
        own_snr_db: Signal to noise of the tensor itself, quantized from exact values.
        alone: Noise of the outputs if only this tensor is quantized, as a share of all there is.
        kept: Share of the noise that goes if only this tensor is left in float. Below zero where
            its error makes up for another's.
        samples: How many samples ``alone`` was measured on; 0 where it is an estimate.
    """

    tensor: str
    kind: Literal["activation", "weight"]
    op_type: str
    format: str
    own_snr_db: float
    alone: float
    kept: float | None = None
    samples: int = 0
    causes: tuple[Cause, ...] = ()
    mends: tuple[Mend, ...] = ()


class Together(_Value, frozen=True, kw_only=True):
    """The worst tensors put to 16 bits at once: measured, not added up.

    ``retried_snr_db`` is what a whole new run with them at 16 bits gives, where one was asked for.
    """

    tensors: tuple[str, ...]
    snr_db: float
    gain_db: float
    noise_won_back: float
    config: str
    retried_snr_db: float | None = None


class Budget(_Value, frozen=True, kw_only=True):
    """How the error of the outputs divides among the quantized tensors, the worst first."""

    snr_db: float
    samples: int
    measured: int
    estimated: int
    float_snr_db: float
    rows: tuple[BudgetRow, ...]
    together: Together | None = None


class Histogram(_Value, frozen=True, kw_only=True):
    """Counts of values in equal bins between two ends."""

    low: float
    high: float
    counts: tuple[int, ...]


class TensorView(_Value, frozen=True, kw_only=True):
    """What a quantized tensor holds, for plots: distribution, limits, ranges of channels."""

    tensor: str
    kind: Literal["activation", "weight"]
    op_type: str
    format: str
    scale: float
    limits: tuple[float, float]
    range: tuple[float, float]
    clipped: float
    histogram: Histogram | None = None
    channel_low: tuple[float, ...] = ()
    channel_high: tuple[float, ...] = ()


class Accuracy(_Value, frozen=True, kw_only=True):
    """One figure of merit of both models on labelled samples, and how sure the gap is.

    ``gap`` is float less quantized; ``low`` and ``high`` are its 95 % interval, paired by sample.
    ``samples_needed`` would narrow that interval to the tolerance on either side.
    """

    name: str
    unit: str
    samples: int
    float_score: float
    quantized_score: float
    fused_score: float | None
    gap: float
    low: float
    high: float
    tolerance: float
    samples_needed: int


class Unfused(_Value, frozen=True, kw_only=True):
    """Operators that run in float between Q/DQ that onnxruntime did not fuse."""

    op_type: str
    count: int
    why: str
    nodes: tuple[str, ...]


class Latency(_Value, frozen=True, kw_only=True):
    """Milliseconds of both models, run in turn; medians over ``runs``."""

    float_ms: float
    quantized_ms: float
    runs: int
    threads: int
    conversion_share: float
    unfused: tuple[Unfused, ...]
    verdict: str
