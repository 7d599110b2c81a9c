"""Models, data and readers that tests share."""
