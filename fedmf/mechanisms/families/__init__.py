"""One paper, one file: the families of factorizations."""
