"""What a system is trained on: readers of real data sets, and generators."""
