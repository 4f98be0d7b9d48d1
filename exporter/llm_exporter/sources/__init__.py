"""Fetch: the only layer that reads the world (HTTP, NVML, /proc, streams)."""
