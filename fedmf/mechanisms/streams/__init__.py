"""Ways to emit the rows of correlated noise."""
