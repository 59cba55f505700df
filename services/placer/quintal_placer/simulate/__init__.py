"""The production engine over a described fleet and a trace: what a policy brings before it is run.

trace      nodes and requests from files
protocol   in which order they arrive, and whether they leave
policies   what the engine's own score is compared with
yard       a fleet without agents, bus or ledger, decided by the engine
run        one run: what was placed, refused, waited for
summary    many runs as one answer
plot       the same as a picture
"""
