"""The empirical audit of the real pipeline, in the order of reading.

scene      small runs with known clients, on the strategy, client app and checkpoint that `simulate` uses
sabotage   faults that are put into the pipeline on purpose, from outside the product's code
vectors    what clients hold, and what an independent twin says that they may add to a sum
coupled    the same secrets with one client in and out: its influence, with certainty
noise      the noise and the masks of a scene, recovered and tested against their laws
attack     one canary guessed in many runs, many canaries guessed in one run: lower bounds on epsilon
recorded   the same questions to a run that was made already, from its directory
report     rows, which sabotage was caught, exit code, table and JSON
"""
