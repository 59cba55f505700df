"""A whole installation on one machine: its folder, its server, its processes."""
