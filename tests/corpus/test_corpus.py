"""Every model of the onnx package's backend tests is quantized, or refused for a known reason.

``make test`` takes one model in ten, each with one of the presets; ``make corpus`` takes all of them
with every preset of ``LOWBIT_CORPUS`` (names with commas between them).
"""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from helpers.corpus import Case, beside_a_layer, corpus, problem_of, reference_outputs

import lowbit

_ASKED = os.environ.get("LOWBIT_CORPUS", "")
PRESETS = _ASKED.split(",") if _ASKED else "A16W8 BF16 XINT8 A8W8 U8S8_PERCHANNEL".split()
PARTS = range(10) if _ASKED else [0]

# Presets that must keep every model near its float one; eight bits may not.
PRECISE = ("A16W8", "BF16", "BF16_CAST", "FP16", "FP16_CAST", "BF16_SCALED", "FP16_SCALED")
LOWEST_DB = 10.0

REFUSED = re.compile(
    "values are NaN or Inf|only tensors can be fed|is already quantized|nothing would be quantized"
    "|the model has no input|oldest that can be|is a sparse tensor|imports no standard operator set"
    "|all values of . feeds are 0|has no element type|has a Scan, which meant something else"
)


def outcome(case: Case, preset: str) -> str:
    """Return what is wrong with the quantized model, or nothing."""
    want = reference_outputs(case)
    if want is None:
        return ""
    try:
        result = lowbit.quantize(case.model, data=[case.feed] * 4, preset=preset, allow_ruined=True)
    except Exception as error:  # each is to be named, not the first alone
        refused = isinstance(error, lowbit.LowbitError) and REFUSED.search(str(error))
        return "" if refused else f"{type(error).__name__}: {error}"
    lowest = LOWEST_DB if preset in PRECISE else -np.inf
    return problem_of(case, want, result.model, lowest)


def chosen(preset: str, part: int) -> list[Case]:
    cases = [case for case in corpus() if case.number % 10 == part]
    if _ASKED:
        return cases
    return [c for c in cases if c.number // 10 % len(PRESETS) == PRESETS.index(preset)]


# The models are made once, unless all of them are asked for.
@pytest.mark.xdist_group("corpus") if not _ASKED else pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_models_are_quantized_or_refused_in_words(preset: str, part: int) -> None:
    cases = chosen(preset, part)
    cases = [*(beside_a_layer(case) for case in cases), *(cases if _ASKED else ())]
    assert len(cases) > 10

    failed = {case.name: problem for case in cases if (problem := outcome(case, preset))}

    assert failed == {}
