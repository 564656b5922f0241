"""What runs in the environments of other systems: scripts that import the other system, numpy, torch and each other."""
