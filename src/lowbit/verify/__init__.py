"""Is the result well formed, and how far is it from the original? Repairs nothing."""
