"""Detection of instructions injected into a prompt, from the activations of the heads."""
