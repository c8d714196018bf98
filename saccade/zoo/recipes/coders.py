"""How both sides of a translator's text become tokens, learnt from its training sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.errors import RecipeError
from saccade.zoo.recipes.translation import TranslationSettings
from saccade.zoo.tasks.multi30k import SentencePairs
from saccade.zoo.tasks.pairs import Pairs, encode_pairs, encode_sources
from saccade.zoo.tasks.rare_words import MixedWords, SpelledWords
from saccade.zoo.tasks.subwords import Subwords
from saccade.zoo.tasks.tokenizers import Coder, WordCoder, coder_from_json
from saccade.zoo.tasks.vocabulary import Padded


@dataclass(frozen=True, kw_only=True)
class Coders:
    """How text becomes tokens, on both sides."""

    source: Coder
    target: Coder
    is_lowercase: bool
    is_reversed: bool

    @classmethod
    def learn(cls, settings: TranslationSettings, pairs: SentencePairs) -> Coders:
        """From training sentences."""
        sources = [_cased(settings.is_lowercase, text) for text in pairs.source]
        if settings.is_joint:
            source = target = _learn(settings, [*sources, *pairs.target])
        else:
            source, target = _learn(settings, sources), _learn(settings, pairs.target)
        return cls._with(settings, source, target)

    @classmethod
    def from_kept(cls, settings: TranslationSettings, kept: Mapping[str, Any]) -> Coders:
        """As a run has kept them."""
        held = kept.get("coders")
        if not held:
            raise RecipeError("the run has kept no vocabulary", hint="train it again")
        coders = [coder_from_json(each, "the run's vocabulary") for each in held]
        return cls._with(settings, coders[0], coders[-1])

    @classmethod
    def _with(cls, settings: TranslationSettings, source: Coder, target: Coder) -> Coders:
        return cls(
            source=source,
            target=target,
            is_lowercase=settings.is_lowercase,
            is_reversed=settings.is_reversed,
        )

    def cased(self, text: str) -> str:
        """A source sentence with the capitals that the system reads."""
        return _cased(self.is_lowercase, text)

    def to_kept(self) -> dict[str, Any]:
        """What a run is to keep; a shared coder once."""
        coders = [self.source] if self.source is self.target else [self.source, self.target]
        return {"coders": [coder.to_json() for coder in coders]}

    def pairs(self, pairs: SentencePairs) -> Pairs:
        """Encode sentences with their translations."""
        return encode_pairs(
            [self.cased(text) for text in pairs.source],
            pairs.target,
            coder=self.source,
            target_coder=self.target,
            is_reversed=self.is_reversed,
        )

    def sources(self, texts: Sequence[str]) -> Padded:
        """Encode sentences that are to be translated."""
        cased = [self.cased(text) for text in texts]
        return encode_sources(cased, self.source, is_reversed=self.is_reversed)


def _learn(settings: TranslationSettings, texts: Sequence[str]) -> Coder:
    match settings.coding:
        case "bpe" | "wordpiece":
            return Subwords.train(texts, size=settings.n_pieces, kind=settings.coding)
        case "words":
            return WordCoder.build(texts, max_size=settings.n_pieces)
        case "mixed":
            return MixedWords.build(texts, n_words=settings.n_pieces)
        case "spelled":
            return SpelledWords.build(texts, n_words=settings.n_pieces)


def _cased(is_lowercase: bool, text: str) -> str:  # noqa: FBT001  one flag and a text
    return text.lower() if is_lowercase else text
