"""Changes to heads that change what a model says: memories, searches, files."""
