"""The stages in their order, each a function that extends the state it is given."""
