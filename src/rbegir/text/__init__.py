"""Text → words → tri-letter grams."""
