"""What several parts' tests use."""
