"""What is kept on disk: safetensors and JSON, written atomically, named by fingerprints."""
