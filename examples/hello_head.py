"""Which heads matter for the next token: `python examples/hello_head.py [MODEL]`."""

import sys

import saccade

model = saccade.open_model(sys.argv[1] if len(sys.argv) > 1 else None)
reading = saccade.read(model, "When Mary and John went to the store, John gave a drink to")
for head in reading.ranked("effect")[:5]:
    tokens = " ".join(each.text for each in head.effect.promotes[:5])
    print(f"{head.layer}.{head.head}  {head.effect.kl:.3f} nats  promotes {tokens}")
