"""One room per vendor's tool. Nothing in here imports the contracts: a probe's child stays small.

A probe gives plain values (`probe.py`); `quintal_agent.report` makes messages of them.
"""
