"""Train a Neural Turing Machine for a moment, and see which slots it reads and writes."""

import tempfile
from dataclasses import replace

import saccade

recipe = saccade.find_recipe("ntm-copy")
training = replace(recipe.settings.training, steps=300)
small = replace(recipe.settings, lengths=(1, 3), tested=(3,), d_bits=3, training=training)
with tempfile.TemporaryDirectory() as folder:
    metrics = saccade.train_recipe(recipe, f"{folder}/ntm", settings=small)
    trace = recipe.trace(saccade.load_run(f"{folder}/ntm"), "3")[0]
print("wrong bits:", metrics["value"], "weights [head, step, slot]:", tuple(trace.weights.shape))
