"""Edits of a running model: injected memories, the search for an edit, edit files."""
