"""Searches above the stages: steps, formats and layers, decided by measuring."""
