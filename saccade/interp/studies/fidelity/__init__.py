"""How far the predictions of a lens agree with the effects of its head."""
