"""Runs below a directory, grouped by what they differ in, as a table and a page."""
