"""What every attention head of a language model does, knows and looks at."""
