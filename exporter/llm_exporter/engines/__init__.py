"""Normalise: one table per engine turns its page into the canonical vocabulary."""
