"""How a command starts, prints and fails."""
