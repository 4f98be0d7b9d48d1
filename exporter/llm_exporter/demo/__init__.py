"""The embedded default: simulated engines, GPU and host whose truth is known."""
