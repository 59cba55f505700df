"""The catalog that a new installation begins with: YAML beside this file, found as package data."""
