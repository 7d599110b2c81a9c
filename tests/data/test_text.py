import pathlib

import numpy as np
import pytest
import tokenizers

from lowbit.data import InputInfo, Tokenization, open_data
from lowbit.data.text import role_of
from lowbit.errors import ConfigError, DataError

_INT, _FLOAT = np.dtype(np.int64), np.dtype(np.float32)
_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat"]


@pytest.fixture
def tokenizer(tmp_path: pathlib.Path) -> str:
    """Write a tokenizer of whole words that puts [CLS] first and [SEP] last."""
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(_WORDS)}, unk_token=_WORDS[1])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    # As files of encoders have it: what a batch of texts would be padded to.
    made.enable_padding(pad_id=0, length=128)
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def _inputs(length: int | str = "L") -> list[InputInfo]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return [InputInfo(name, _INT, ("N", length)) for name in names]


def _write(folder: pathlib.Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_each_line_is_a_sample_of_its_own_length(tmp_path: pathlib.Path, tokenizer: str) -> None:
    path = _write(tmp_path, "texts.txt", "the cat sat\n\n  \nthe cat sat on the mat\n")

    data = open_data(path, _inputs(), preprocessing=Tokenization(tokenizer=tokenizer))
    short, long = list(data)

    assert short["input_ids"].tolist() == [[2, 4, 5, 6, 3]]
    assert long["input_ids"].tolist() == [[2, 4, 5, 6, 7, 4, 8, 3]]
    assert long["attention_mask"].tolist() == [[1] * 8]
    assert long["token_type_ids"].tolist() == [[0] * 8]
    assert "2 texts from" in data.description


def test_a_model_of_fixed_length_gets_padding_that_its_mask_names(
    tmp_path: pathlib.Path, tokenizer: str
) -> None:
    path = _write(tmp_path, "texts.txt", "the cat\nthe cat sat on the mat\n")

    data = open_data(path, _inputs(6), preprocessing=Tokenization(tokenizer=tokenizer))
    short, long = list(data)

    assert short["input_ids"].tolist() == [[2, 4, 5, 3, 0, 0]]
    assert short["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert long["input_ids"].tolist() == [[2, 4, 5, 6, 7, 3]]


@pytest.mark.parametrize(
    "line", ['{"text": "the cat"}', '"the cat"', '{"id": 3, "label": "the cat"}']
)
def test_objects_of_a_jsonl_hold_a_text(tmp_path: pathlib.Path, tokenizer: str, line: str) -> None:
    path = _write(tmp_path, "texts.jsonl", line + "\n")

    (feed,) = open_data(path, _inputs(), preprocessing=Tokenization(tokenizer=tokenizer))

    assert feed["input_ids"].tolist() == [[2, 4, 5, 3]]


def test_positions_and_empty_caches_are_filled(tmp_path: pathlib.Path, tokenizer: str) -> None:
    path = _write(tmp_path, "texts.txt", "the cat\n")
    inputs = [
        InputInfo("input_ids", _INT, ("N", "L")),
        InputInfo("attention_mask", _INT, ("N", "T")),
        InputInfo("position_ids", _INT, ("N", "L")),
        InputInfo("past_key_values.0.key", _FLOAT, ("N", 4, "P", 8)),
    ]

    (feed,) = open_data(path, inputs, preprocessing=Tokenization(tokenizer=tokenizer))

    assert feed["position_ids"].tolist() == [[0, 1, 2, 3]]
    assert feed["past_key_values.0.key"].shape == (1, 4, 0, 8)


def test_texts_are_cut_and_chosen_evenly(tmp_path: pathlib.Path, tokenizer: str) -> None:
    lines = ["cat " * n for n in range(1, 10)]
    path = _write(tmp_path, "texts.txt", "\n".join(lines))

    made = Tokenization(tokenizer=tokenizer, max_length=4)
    feeds = list(open_data(path, _inputs(), preprocessing=made, limit=3))

    assert [feed["input_ids"].shape[1] for feed in feeds] == [3, 4, 4]


@pytest.mark.parametrize(
    ("name", "dtype", "role"),
    [
        ("input_ids", _INT, "tokens"),
        ("tokens", _INT, "tokens"),
        ("attention_mask", _FLOAT, "mask"),
        ("input_mask:0", _INT, "mask"),
        ("segment_ids", _INT, "kinds"),
        ("token_type_ids", _INT, "kinds"),
        ("position_ids", _INT, "positions"),
        ("past_key_values.3.value", _FLOAT, "cache"),
    ],
)
def test_inputs_are_known_by_their_names(name: str, dtype: np.dtype, role: str) -> None:
    assert role_of(InputInfo(name, dtype, ("N", "L"))) == role


def test_what_is_wrong_is_named(tmp_path: pathlib.Path, tokenizer: str) -> None:
    path = _write(tmp_path, "texts.txt", "the cat\n")
    made = Tokenization(tokenizer=tokenizer)
    with pytest.raises(DataError, match="give --tokenizer"):
        open_data(path, _inputs())
    with pytest.raises(DataError, match="there is no tokenizer"):
        open_data(path, _inputs(), preprocessing=Tokenization(tokenizer="nowhere.json"))
    with pytest.raises(DataError, match=r"'pixels'.* is none that text fills"):
        open_data(path, [InputInfo("pixels", _FLOAT, ("N", 3))], preprocessing=made)
    with pytest.raises(DataError, match="holds no text"):
        open_data(_write(tmp_path, "empty.txt", "\n\n"), _inputs(), preprocessing=made)
    with pytest.raises(DataError, match=r"line 1 .* is not JSON"):
        open_data(_write(tmp_path, "bad.jsonl", "{the\n"), _inputs(), preprocessing=made)
    with pytest.raises(ConfigError, match="a tokenizer is given, but the data is no text"):
        open_data("random", _inputs(4), preprocessing=made)
    long = Tokenization(tokenizer=tokenizer, max_length=9)
    with pytest.raises(ConfigError, match="the model takes 6 tokens"):
        open_data(path, _inputs(6), preprocessing=long)
