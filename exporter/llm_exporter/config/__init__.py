"""Configuration: the model of every key, the strict loader, secrets, and discovery of targets."""
