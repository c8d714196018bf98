"""Open a Hugging Face causal model, find its heads, capture what they write, change it."""
