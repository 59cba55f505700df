"""The agent: what a node has, how it does, and which leases hold it."""
