"""The empirical audit of the real pipeline, in the order of reading.

scene      small runs with known clients, on the strategy, client app and checkpoint that `simulate` uses
sabotage   faults that are put into the pipeline on purpose, from outside the product's code
tested     one client's influence, with certainty; the noise and the masks of a scene against their laws
attack     one canary guessed in many runs, many canaries guessed in one run: lower bounds on epsilon
__main__   rows, which sabotage was caught, exit code, table and JSON
"""
