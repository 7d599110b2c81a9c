import numpy as np
import pytest

from lowbit.evaluate.outputs import Distance, Part, decibels, find_parts


def boxes_and_scores(axis: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    mixed = np.concatenate([rng.uniform(50, 600, (1, 4, 90)), rng.uniform(0, 0.9, (1, 20, 90))], 1)
    return (mixed if axis == 1 else mixed.transpose(0, 2, 1)).astype(np.float32)


@pytest.mark.parametrize(("axis", "name"), [(1, "out[:, 0:4]"), (2, "out[:, :, 0:4]")])
def test_boxes_and_scores_are_told_apart(axis, name) -> None:
    parts = find_parts({"out": boxes_and_scores(axis)})

    assert [p.name for p in parts] == [name, name.replace("0:4", "4:24")]


def test_an_output_of_one_kind_is_one_part() -> None:
    rng = np.random.default_rng(0)

    for shape in ((1, 1000), (1, 21, 16, 16), (1, 5)):
        assert find_parts({"y": rng.normal(size=shape).astype(np.float32)}) == (Part("y"),)


def test_noise_in_scores_is_not_drowned_by_boxes() -> None:
    want = boxes_and_scores(1)
    got = want.copy()
    got[:, 4:] = 0
    distance = Distance(find_parts({"out": want}))

    distance.add({"out": want}, {"out": got})

    figures = distance.by_name()
    assert figures["out[:, 0:4]"].noise == 0
    assert figures["out[:, 4:24]"].sqnr_db == pytest.approx(0)
    # The mean of nothing lost in one part and everything in the other.
    assert distance.noise == pytest.approx(0.5)


def test_decibels() -> None:
    assert decibels(0.01) == pytest.approx(20)
    assert decibels(0) == np.inf
