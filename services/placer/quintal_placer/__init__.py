"""The placer: owns what is promised (leases, queue, node schedulability and liveness)."""
