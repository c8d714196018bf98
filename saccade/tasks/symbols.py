"""The four symbols that every vocabulary begins with, and their ids."""

PAD = 0
"""Fills up the rows of a batch; never predicted and never attended."""
BOS = 1
"""What a decoder is given before the first symbol."""
EOS = 2
"""What a decoder says when it has finished; also the end of a source sentence."""
UNK = 3
"""Stands for whatever a vocabulary does not hold."""

SYMBOLS = ("<pad>", "<s>", "</s>", "<unk>")
"""How they are written; the place in this list is the id."""
