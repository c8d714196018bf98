"""Recurrent cells and their stacks, and what is learnt from looking into them."""
