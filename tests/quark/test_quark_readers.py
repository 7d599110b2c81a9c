"""Quark's readers of calibration data."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from helpers.quark_helpers import BareReader
from helpers.small_models import small_cnn, small_feeds

from lowbit.quark.errors import QuarkConfigError, QuarkDataError
from lowbit.quark.onnx import CachedDataReader, PathDataReader, RandomDataReader, dump_model


def test_a_cache_gives_the_same_again() -> None:
    cached = CachedDataReader(BareReader(small_feeds(5)), data_size=3)

    first = [cached.get_next() for _ in range(4)]
    cached.reset_iter()

    assert len(cached) == 3
    assert first[3] is None
    np.testing.assert_array_equal(cached.get_next()["input"], small_feeds(1)[0]["input"])


def test_a_cache_converts_what_it_keeps() -> None:
    cached = CachedDataReader(
        BareReader(small_feeds(1)), convert_nchw_to_nhwc=True, quantize_fp16=True
    )

    kept = cached.get_next()["input"]

    assert (kept.shape, kept.dtype) == ((1, 32, 32, 3), np.float16)


@pytest.mark.parametrize(
    ("feeds", "message"), [([], "No data"), ([{"input": [1.0]}], "'input' is a list")]
)
def test_what_a_cache_cannot_keep_is_said(feeds: list, message: str) -> None:
    with pytest.raises(QuarkDataError, match=message):
        CachedDataReader(BareReader(feeds))


def test_random_numbers_are_quarks() -> None:
    reader = RandomDataReader(small_cnn())

    feed = reader.get_next()["input"]

    expected = np.random.RandomState(42).random_sample((1, 3, 32, 32)).astype(np.float32)
    np.testing.assert_array_equal(feed, expected)
    assert reader.get_next() is None


def test_random_shapes_and_ranges_can_be_given() -> None:
    reader = RandomDataReader(small_cnn(), {"input": [2, 3, 32, 32]}, {"input": [-2, 5]})

    feed = reader.get_next()["input"]

    assert feed.shape == (2, 3, 32, 32)
    assert -2 <= feed.min() < -1.9
    assert 4.9 < feed.max() <= 5


def test_random_integers_within_a_range_reach_both_ends() -> None:
    graph = onnx.parser.parse_graph("g (int64[N, M] ids) => (int64[N, M] y) { y = Identity(ids) }")
    model = onnx.helper.make_model(graph)

    feed = RandomDataReader(model, {}, {"ids": [3, 5]}).get_next()["ids"]

    assert feed.shape == (1, 16)
    assert set(feed.ravel()) == {3, 4, 5}


def test_an_input_left_out_is_named() -> None:
    with pytest.raises(QuarkConfigError, match="lacks the input 'input'"):
        RandomDataReader(small_cnn(), {"x": [1]}).get_next()


def test_a_folder_is_read_in_order(tmp_path: pathlib.Path) -> None:
    for index, feed in enumerate(small_feeds(3)):
        np.save(tmp_path / f"{index}.npy", feed["input"])
    reader = PathDataReader(small_cnn(), tmp_path)

    feeds = [reader.get_next() for _ in range(4)]

    assert feeds[3] is None
    np.testing.assert_array_equal(feeds[2]["input"], small_feeds(3)[2]["input"])


def test_every_tensor_is_dumped(tmp_path: pathlib.Path) -> None:
    dump_model(small_cnn(), BareReader(small_feeds(1)), dump_float=True, output_dir=str(tmp_path))

    stored = np.fromfile(tmp_path / "logits_float.bin", np.float32)
    assert stored.shape == (5,)
    np.testing.assert_allclose(np.loadtxt(tmp_path / "logits_float.txt"), stored, rtol=1e-5)
    assert (tmp_path / "c1_float.bin").exists()
