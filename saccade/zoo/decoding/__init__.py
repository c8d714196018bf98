"""Decoding: from next-token predictions to whole sequences."""
