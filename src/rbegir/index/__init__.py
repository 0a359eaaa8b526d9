"""The durable index."""
