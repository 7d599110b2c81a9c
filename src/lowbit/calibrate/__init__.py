"""From data to statistics: one pass, bounded memory, and the result can be kept and reused."""
