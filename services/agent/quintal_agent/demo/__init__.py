"""A fleet to look at: nodes described by hand in `fleet.yaml`, run through the agent's own code.

Only the probes are scripted. Identity, subjects, credentials, inventories, leases on disk are
those of a real node, one of each per described node, all in one process.
"""
