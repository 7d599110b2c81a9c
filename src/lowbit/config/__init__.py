"""What the user asks for: immutable values, checked when they are read."""
