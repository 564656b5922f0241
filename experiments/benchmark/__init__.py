"""What `python -m experiments.benchmark` measures: a row is a kernel or a round, and its floor."""
