"""Exhaustive, exact top-k."""
