"""Rewrites of a float graph, one a file. Each changes the model it is given."""
