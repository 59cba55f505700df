"""Metering: owns what was used and what it costs."""
