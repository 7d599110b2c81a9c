"""What configurations have in common of one model's normalization."""

from __future__ import annotations

import msgspec

from lowbit.config.presets import find_preset
from lowbit.pipeline.normalizing import normalization_key


def test_a_model_is_normalized_anew_only_for_what_changes_it() -> None:
    config = find_preset("A8W8")
    key = normalization_key(config)

    assert key == normalization_key(find_preset("XINT8"))
    # Weights in groups of 4 bits need a newer operator set.
    assert key != normalization_key(find_preset("W4"))
    for change in ({"fix_inputs": {"sr": 16000}}, {"input_shapes": {"x": (1, 3)}}):
        assert key != normalization_key(msgspec.structs.replace(config, **change))
