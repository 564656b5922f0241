"""What a run would cost, before it runs: the command, what its settings say, and the table in words."""
