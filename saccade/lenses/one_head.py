"""What the lens of a single head says: a layer's lens without the work for its other heads."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from saccade.lenses.head_lens import HeadLens
from saccade.lenses.lens import Lens


def said_by_head(
    lens: Lens, held: Float[Tensor, "n head d_held"], head: int
) -> Float[Tensor, "n d_vocab"]:
    """Vocabulary logits of one head at each position.

    The product with the unembedding is nearly all of the time, so it is made for this head alone.
    """
    if isinstance(lens, HeadLens):
        hidden = lens.hidden(held)[:, head]  # [n, d_model]
        return lens.unembed(hidden, None).float() + lens.word_bias[head]
    if lens.site == "direct":
        return lens(held[:, head : head + 1])[:, 0]
    return lens(held)[:, head]
