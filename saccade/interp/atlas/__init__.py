"""The atlas: every head of a model over a whole text, what it does, knows and looks at."""
