"""Write the decisions into a graph. Decides nothing."""
