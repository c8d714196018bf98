"""What a system is trained towards."""
