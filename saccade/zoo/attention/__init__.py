"""Score, select, attend; multi-head attention; masks and positions."""
