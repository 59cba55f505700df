"""What two services must agree on: every message, and every subject once."""
