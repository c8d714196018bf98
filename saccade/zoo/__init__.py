"""The classic attention systems: models, tasks, training, and recipes that reproduce a number."""
