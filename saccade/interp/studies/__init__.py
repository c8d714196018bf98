"""What lenses are for: bias, injected prompts, edits, head roles, fidelity, transfer."""
