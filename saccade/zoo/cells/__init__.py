"""Recurrent cells, stacks of cells, and lecture examples."""
