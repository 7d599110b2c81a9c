"""Facts about operators: traits, linear layers, activations, channels."""
