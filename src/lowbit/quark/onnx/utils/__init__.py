"""Helpers by Quark's names."""
