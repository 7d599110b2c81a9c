"""Quark's custom operators."""
