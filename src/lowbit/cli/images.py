"""From image options to a preprocessing: a named one, with the fields given replaced."""

from __future__ import annotations

import argparse
import dataclasses

from lowbit.data import Preprocessing, find_preprocessing

_FIELDS = ("mean", "std", "scale", "resize", "crop", "layout", "channel_order")


def make_preprocessing(args: argparse.Namespace) -> Preprocessing | None:
    """Return what is done to images, or ``None`` when no option says anything about it."""
    given = {name: getattr(args, name) for name in _FIELDS if getattr(args, name) is not None}
    if args.preprocess is None and not given:
        return None
    start = Preprocessing() if args.preprocess is None else find_preprocessing(args.preprocess)
    # A size of which both parts are given is meant as it is, not as a proportion.
    if "resize" in given and ("crop" in given or start.letterbox):
        given["proportional"] = False
    return dataclasses.replace(start, **given)
