"""Configuration: the model of every key, the strict loader, secrets, and discovery of targets.

`model.py` is the reference of keys, `load.py` the way from a file to a `Config`, `discovery.py` the way from its lists to targets.
"""
