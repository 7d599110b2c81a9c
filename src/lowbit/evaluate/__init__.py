"""Results of models as files: writing them, and comparing two folders of them."""

from lowbit.evaluate.folders import Evaluation, FileScore, evaluate
from lowbit.evaluate.infer import infer

__all__ = ["Evaluation", "FileScore", "evaluate", "infer"]
