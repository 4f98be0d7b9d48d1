"""Remember: counters across resets, and a short ring of frames per target for windows."""
