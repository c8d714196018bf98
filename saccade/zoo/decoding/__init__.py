"""From a model that predicts the next symbol to whole sequences."""
