"""The systems, one a file, the whole forward pass visible."""
