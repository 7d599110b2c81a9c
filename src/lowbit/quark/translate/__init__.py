"""What Quark's configurations mean in lowbit: from its fields to a ``QuantConfig`` and a target."""
