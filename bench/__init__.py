"""lowbit compared with its alternatives: time, memory and accuracy of the same jobs."""
