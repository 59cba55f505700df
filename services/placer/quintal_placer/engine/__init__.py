"""The placement engine, a pure library: fleet and ask in, decision out.

No clock, chance, bus, disk or wire; integers and names only. `Fleet` keeps indexes, so that the
cost of a decision hardly grows with the fleet; `decide` is the pass, in numbered steps; `leases`
is the lease machine as a table; `quota` counts what each tenant holds.
"""
