"""Files on disk: safetensors and JSON, atomic writes, fingerprints."""
