"""Which heads carry a bias, and whether ablating them changes the output."""
