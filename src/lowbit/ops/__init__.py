"""What the package knows about operators: traits, linear layers, activations, channels."""
