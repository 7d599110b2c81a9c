"""Quark's experimental tools, all for PyTorch: the name exists, and there is nothing in it."""

__all__: list[str] = []
