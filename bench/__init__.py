"""lowbit beside what a user would pick instead: time, memory and accuracy of the same jobs."""
