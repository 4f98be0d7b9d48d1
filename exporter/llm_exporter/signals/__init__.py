"""Derive: pure functions over one view; each signal is declared once."""
