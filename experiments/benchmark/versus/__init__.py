"""The same client work in our simulation, in pfl and in Flower's engine: three scripts, each compared with a bare PyTorch loop.

The scripts of other systems run in an environment of theirs: they import that system, numpy, torch and each other.
"""
