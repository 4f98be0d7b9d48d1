"""KV-cache memory of a model from its Hugging Face config.json: `shape.py` reads the layers, `memory.py` counts bytes and what fits."""
