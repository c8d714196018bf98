"""Open a Hugging Face causal model, find its heads, capture their activations, intervene."""
