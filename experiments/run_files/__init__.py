"""Names and formats of what lies in a run directory."""
