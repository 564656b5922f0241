"""Numbers become HTML and pictures."""
