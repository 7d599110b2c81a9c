"""Calibration data: images, arrays, readers and iterables as one re-iterable set of feeds.

Whatever the source, every feed is checked against the model's inputs before it is handed out, and
memory stays flat. Nothing here knows about quantization or graphs; a model is a list of inputs.
"""

from lowbit.data.dataset import Data
from lowbit.data.inputs import InputInfo, Sample
from lowbit.data.opening import open_data
from lowbit.data.preprocessing import PREPROCESSINGS, Preprocessing, find_preprocessing
from lowbit.data.text import Tokenization

__all__ = [
    "PREPROCESSINGS",
    "Data",
    "InputInfo",
    "Preprocessing",
    "Sample",
    "Tokenization",
    "find_preprocessing",
    "open_data",
]
