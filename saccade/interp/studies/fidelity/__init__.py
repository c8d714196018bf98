"""How far what a lens says agrees with what its head does."""
