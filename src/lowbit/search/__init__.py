"""What sits above the stages: which steps, formats and layers, decided by measuring."""
