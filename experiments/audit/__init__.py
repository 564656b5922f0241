"""The empirical audit of the real pipeline, in parts.

law        what the attacker assumes one coordinate to do: statistic, decision rule, prediction
levels     how probably all rows together refute an honest pipeline
row        one test of one pipeline and its verdict, whatever the test
sabotage   what the audit breaks on purpose, injected from outside the product's code
pipeline   the real strategy and client app on the local grid, and what an attacker reads off the releases
scene      small pipelines whose clients all hold known vectors, one for each way a run can go
crossing   what one client sends in coupled runs, and in which rounds
coupled    the same secrets with one client in and out: its influence, for certain
residual   the noise and the masks of a pipeline, recovered and held against their laws
recorded   the same questions to a run that was played already, from its directory
digits     many runs on digits with one canary
one_run    one run whose clients are all canaries
work       calls shared out to processes, with the time left
trials     which pipelines are attacked under which laws, and the verdicts: the headline
further    other rows of the same runs: learned attack, mu, fitted noise, exact epsilon
settings   the keys of the command
jobs       the audit as calls that processes share, and what makes rows of them
matrix     which test caught which sabotage, and the exit code
power      how probably each row finds too little noise
calibration  false alarms of what is honest
report     what is printed and written
table      the headline's table, and the plot
"""
