"""What `saccade edit` tells of an edit: what the model says without it and with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.studies.edit.edit_file import Edit

TOP = 5  # words of a prediction


def facts_of(
    model: LanguageModel, edit: Edit, prompt: str, *, word: int | None, say: int
) -> dict[str, Any]:
    """The model's predictions after a prompt, and what it goes on with, before and after.

    Args:
        word: whose probability is told; without it, the word that is likeliest before.
    """
    from saccade.interp.studies.edit.edit_file import describe
    from saccade.interp.studies.prompts import go_on

    plain = _chances(model, prompt)
    says = go_on(model, prompt, say)
    with edit.applied(model):
        edited = _chances(model, prompt)
        says_edited = go_on(model, prompt, say)
    word = int(plain.argmax()) if word is None else word
    facts: dict[str, Any] = {
        "model": model.name,
        "prompt": prompt,
        "about": edit.about,
        "changes": [describe(each) for each in edit.changes],
        "word": model.words([word])[0],
        "before": float(plain[word]),
        "after": float(edited[word]),
        "predicts": _top(model, plain),
        "predicts_edited": _top(model, edited),
    }
    return facts | ({"says": says, "says_edited": says_edited} if say else {})


def lines_of(facts: dict[str, Any]) -> str:
    """The same for people."""
    from saccade.interp.lenses.reading_table import dotted

    done = ", ".join(facts["changes"])
    times = facts["after"] / max(facts["before"], 1e-30)
    effect = (
        f"{dotted(facts['word'])}: {100 * facts['before']:.2f}% -> {100 * facts['after']:.2f}% "
        f"({times:.1f} times)"
    )
    if "unrelated_perplexity" in facts:
        effect += f"; perplexity of unrelated text {100 * facts['unrelated_perplexity']:+.2f}%"
    lines = [done if facts["about"] == done else f"{facts['about']}: {done}", effect]
    for name, key in (("predicts", "predicts"), ("with the edit", "predicts_edited")):
        shown = "  ".join(f"{dotted(word)} {100 * p:.0f}%" for word, p in facts[key])
        lines.append(f"{name:<14} {shown}")
    for name, key in (("says", "says"), ("with the edit", "says_edited")):
        if key in facts:
            lines.append(f"{name:<14} {' '.join(facts[key].split())}")
    return "\n".join(lines)


def _chances(model: LanguageModel, prompt: str) -> Float[Tensor, " d_vocab"]:
    from saccade.interp.heads.capture import capture

    final = capture(model, model.encode(prompt), layers=[]).final[0, -1]
    return model.unembedding.logits(final).float().softmax(-1)


def _top(model: LanguageModel, chances: Float[Tensor, " d_vocab"]) -> list[tuple[str, float]]:
    best = chances.topk(TOP)
    words = model.words(best.indices.tolist())
    return list(zip(words, best.values.tolist(), strict=True))
