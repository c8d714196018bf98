"""What can be attended beyond a plain sequence: facts, slots that can be written, trees."""

from saccade.memories.addressing import (
    content_weights,
    cosine_similarity,
    locate,
    sharpen_weights,
    shift_weights,
)
from saccade.memories.facts import SentenceBags, fact_ages, fill_in, position_weights
from saccade.memories.links import Followed, Links, follow, next_links, no_links
from saccade.memories.slots import write_slots
from saccade.memories.sparse import SparseMemory
from saccade.memories.tree import Tree, find_leaf, grow, leaf_weights, rewrite
from saccade.memories.usage import allocation_weights, next_usage

__all__ = [
    "Followed",
    "Links",
    "SentenceBags",
    "SparseMemory",
    "Tree",
    "allocation_weights",
    "content_weights",
    "cosine_similarity",
    "fact_ages",
    "fill_in",
    "find_leaf",
    "follow",
    "grow",
    "leaf_weights",
    "locate",
    "next_links",
    "next_usage",
    "no_links",
    "position_weights",
    "rewrite",
    "sharpen_weights",
    "shift_weights",
    "write_slots",
]
