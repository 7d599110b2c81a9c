"""Results of models as files: writing them, and comparing two folders of them."""

from lowbit.evaluate.folders import Evaluation, FileScore, evaluate, infer

__all__ = ["Evaluation", "FileScore", "evaluate", "infer"]
