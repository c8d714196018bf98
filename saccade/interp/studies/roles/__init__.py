"""Roles of heads, each by its published test, with a score and an interval for every head."""
