"""Measuring a device here, so that its rating need not rest on an estimate."""
