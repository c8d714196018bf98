"""What a system is trained on: readers of real data sets, and generators."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.tasks.adding import AddingBatch, adding_batch, adding_batches
    from saccade.tasks.binarised import BinarisedDigits, binarise
    from saccade.tasks.coder import Coder
    from saccade.tasks.coders import (
        CharacterCoder,
        WordCoder,
        coder_from_json,
        load_coder,
        save_coder,
        unknown,
    )
    from saccade.tasks.copying import (
        CopyingBatch,
        copying_baseline,
        copying_batch,
        copying_batches,
    )
    from saccade.tasks.curricula import Curriculum, Difficulty
    from saccade.tasks.data_sets import DATA_SETS, DataFile, DataSet
    from saccade.tasks.fetch import Listed, fetch_data, find_data, list_data
    from saccade.tasks.fra_eng import read_fra_eng
    from saccade.tasks.images import ImageBatch, as_images
    from saccade.tasks.interpreter import execute
    from saccade.tasks.linearised import Delinearised, delinearise, linearise
    from saccade.tasks.mixed_words import MixedWords
    from saccade.tasks.mnist import Digits, read_mnist
    from saccade.tasks.multi30k import read_multi30k
    from saccade.tasks.pairs import PairBatch, Pairs, encode_pairs, encode_sources
    from saccade.tasks.programs import Program, make_programs, program_coder, scramble
    from saccade.tasks.ragged import Padded, Ragged
    from saccade.tasks.row_mnist import RowBatch, row_batches
    from saccade.tasks.scenes import Scene, Scenes, make_scenes
    from saccade.tasks.sentence_pairs import PairSplits, SentencePairs, read_parallel
    from saccade.tasks.spelled_words import SpelledWords
    from saccade.tasks.subwords import Subwords
    from saccade.tasks.symbols import BOS, EOS, PAD, SYMBOLS, UNK
    from saccade.tasks.text import (
        TextBatch,
        TextCorpus,
        TextSplits,
        make_corpus,
        split_text,
        stream_batches,
    )
    from saccade.tasks.tinyshakespeare import read_tinyshakespeare
    from saccade.tasks.treebank import TreeSplits, read_treebank, word_class
    from saccade.tasks.trees import Tree, read_trees, score_trees
    from saccade.tasks.vocabulary import Vocabulary

# Module -> names: loaded when first used, so that data sets can be listed without torch.
_MODULES = {
    "adding": ("AddingBatch", "adding_batch", "adding_batches"),
    "binarised": ("BinarisedDigits", "binarise"),
    "coder": ("Coder",),
    "coders": (
        "CharacterCoder",
        "WordCoder",
        "coder_from_json",
        "load_coder",
        "save_coder",
        "unknown",
    ),
    "copying": ("CopyingBatch", "copying_baseline", "copying_batch", "copying_batches"),
    "curricula": ("Curriculum", "Difficulty"),
    "data_sets": ("DATA_SETS", "DataFile", "DataSet"),
    "fetch": ("Listed", "fetch_data", "find_data", "list_data"),
    "fra_eng": ("read_fra_eng",),
    "images": ("ImageBatch", "as_images"),
    "interpreter": ("execute",),
    "linearised": ("Delinearised", "delinearise", "linearise"),
    "mixed_words": ("MixedWords",),
    "mnist": ("Digits", "read_mnist"),
    "multi30k": ("read_multi30k",),
    "pairs": ("PairBatch", "Pairs", "encode_pairs", "encode_sources"),
    "programs": ("Program", "make_programs", "program_coder", "scramble"),
    "ragged": ("Padded", "Ragged"),
    "row_mnist": ("RowBatch", "row_batches"),
    "scenes": ("Scene", "Scenes", "make_scenes"),
    "sentence_pairs": ("PairSplits", "SentencePairs", "read_parallel"),
    "spelled_words": ("SpelledWords",),
    "subwords": ("Subwords",),
    "symbols": ("BOS", "EOS", "PAD", "SYMBOLS", "UNK"),
    "text": (
        "TextBatch",
        "TextCorpus",
        "TextSplits",
        "make_corpus",
        "split_text",
        "stream_batches",
    ),
    "tinyshakespeare": ("read_tinyshakespeare",),
    "treebank": ("TreeSplits", "read_treebank", "word_class"),
    "trees": ("Tree", "read_trees", "score_trees"),
    "vocabulary": ("Vocabulary",),
}
__all__ = [
    "BOS",
    "DATA_SETS",
    "EOS",
    "PAD",
    "SYMBOLS",
    "UNK",
    "AddingBatch",
    "BinarisedDigits",
    "CharacterCoder",
    "Coder",
    "CopyingBatch",
    "Curriculum",
    "DataFile",
    "DataSet",
    "Delinearised",
    "Difficulty",
    "Digits",
    "ImageBatch",
    "Listed",
    "MixedWords",
    "Padded",
    "PairBatch",
    "PairSplits",
    "Pairs",
    "Program",
    "Ragged",
    "RowBatch",
    "Scene",
    "Scenes",
    "SentencePairs",
    "SpelledWords",
    "Subwords",
    "TextBatch",
    "TextCorpus",
    "TextSplits",
    "Tree",
    "TreeSplits",
    "Vocabulary",
    "WordCoder",
    "adding_batch",
    "adding_batches",
    "as_images",
    "binarise",
    "coder_from_json",
    "copying_baseline",
    "copying_batch",
    "copying_batches",
    "delinearise",
    "encode_pairs",
    "encode_sources",
    "execute",
    "fetch_data",
    "find_data",
    "linearise",
    "list_data",
    "load_coder",
    "make_corpus",
    "make_programs",
    "make_scenes",
    "program_coder",
    "read_fra_eng",
    "read_mnist",
    "read_multi30k",
    "read_parallel",
    "read_tinyshakespeare",
    "read_treebank",
    "read_trees",
    "row_batches",
    "save_coder",
    "score_trees",
    "scramble",
    "split_text",
    "stream_batches",
    "unknown",
    "word_class",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"saccade.tasks.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
