"""Whether an instruction was injected into a prompt, told from the heads."""
