"""Fixtures that make small models and compare what they compute."""

from helpers.graph_fixtures import assert_same, floats, norm, parse, rng, run

__all__ = ["assert_same", "floats", "norm", "parse", "rng", "run"]
