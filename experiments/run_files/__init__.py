"""Names and formats of the files of a run directory."""
