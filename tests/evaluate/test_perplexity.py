import numpy as np
import pytest

from lowbit.evaluate.perplexity import PerplexitySums

_RANDOM = np.random.default_rng(0)
_TOKENS = _RANDOM.integers(0, 300, (2, 6))


def _logits(foretold: np.ndarray, sure: float) -> np.ndarray:
    """Return logits by which each position tells its token with a certain surplus over the rest."""
    found = np.zeros((*foretold.shape, 300), np.float32)
    np.put_along_axis(found, foretold[:, :, None], sure, axis=2)
    return found


def _next(tokens: np.ndarray) -> np.ndarray:
    return np.concatenate([tokens[:, 1:], tokens[:, :1]], axis=1)


def test_the_perplexity_is_one_over_the_probability_of_the_next_token() -> None:
    sums = PerplexitySums()

    sums.add({"input_ids": _TOKENS}, _logits(_next(_TOKENS), 8.0), _logits(_next(_TOKENS), 6.0))
    found = sums.result()

    assert found is not None
    assert found.tokens == 10
    assert found.float_model == pytest.approx((np.exp(8) + 299) / np.exp(8))
    assert found.quantized == pytest.approx((np.exp(6) + 299) / np.exp(6))
    assert found.describe().startswith("perplexity 1.741 (float 1.1")


def test_padding_does_not_count() -> None:
    tokens, mask = _TOKENS.copy(), np.ones_like(_TOKENS)
    mask[0, 3:], tokens[0, 3:] = 0, 0
    logits = _logits(_next(_TOKENS), 8.0)
    sums = PerplexitySums()

    sums.add({"input_ids": tokens, "attention_mask": mask}, logits, logits)
    found = sums.result()

    assert found is not None
    assert found.tokens == 2 + 5
    assert found.float_model == pytest.approx((np.exp(8) + 299) / np.exp(8))


@pytest.mark.parametrize(
    ("feed", "foretold"),
    [
        ({"input_ids": _TOKENS}, _TOKENS),  # it fills in tokens that are given
        ({"pixels": _TOKENS.astype(np.float32)}, _next(_TOKENS)),
        ({"input_ids": _TOKENS[:, :3]}, _next(_TOKENS)),  # of another length
        ({"input_ids": _TOKENS + 300}, _next(_TOKENS)),  # of a larger vocabulary
    ],
)
def test_other_models_have_none(feed: dict[str, np.ndarray], foretold: np.ndarray) -> None:
    logits = _logits(foretold, 8.0)
    sums = PerplexitySums()

    sums.add(feed, logits, logits)

    assert sums.result() is None
