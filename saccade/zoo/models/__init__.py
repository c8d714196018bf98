"""The models, one per file, with the whole forward pass written out."""
