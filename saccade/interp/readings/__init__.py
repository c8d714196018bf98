"""Readings: what every head does, knows and attends to at one position of a text."""
