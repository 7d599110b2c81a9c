"""Translate Quark's configurations into a ``QuantConfig`` and a target."""
