"""What heads do: exact effects of interventions, for all heads at once."""
