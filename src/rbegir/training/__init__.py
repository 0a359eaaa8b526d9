"""Learning from clicked pairs."""
