"""The language that all parts of Quintal share: contracts, bus, units, identity, pricing."""

__version__ = "0.1.0"
