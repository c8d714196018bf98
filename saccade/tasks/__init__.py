"""What a system is trained on: readers of real data sets, and generators."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.tasks.adding import AddingBatch, adding_batch, adding_batches
    from saccade.tasks.babi import BabiSplits, Question, parse_stories, read_babi
    from saccade.tasks.binarised import BinarisedDigits, binarise
    from saccade.tasks.bit_sequences import (
        BitBatch,
        copy_batch,
        priority_sort_batch,
        recall_batch,
        repeat_copy_batch,
    )
    from saccade.tasks.book_cloze import ClozeSplits, book_questions, read_book_cloze
    from saccade.tasks.caption_scenes import CaptionScenes, SceneBatch
    from saccade.tasks.captions import Sentences
    from saccade.tasks.cloze import Cloze, ClozeBatch, ClozeQuestion, make_question
    from saccade.tasks.coder import Coder
    from saccade.tasks.coders import (
        CharacterCoder,
        WordCoder,
        coder_from_json,
        load_coder,
        save_coder,
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
    from saccade.tasks.flickr8k import read_flickr8k
    from saccade.tasks.fra_eng import read_fra_eng
    from saccade.tasks.frame_batch import FrameBatch, Frames, Spelling
    from saccade.tasks.images import ImageBatch, as_images
    from saccade.tasks.interpreter import execute
    from saccade.tasks.joined_digits import JoinedDigits, Joining
    from saccade.tasks.karpathy import read_karpathy
    from saccade.tasks.linearised import Delinearised, delinearise, linearise
    from saccade.tasks.mel_spectrum import log_mel
    from saccade.tasks.mixed_words import MixedWords
    from saccade.tasks.mnist import Digits, read_mnist
    from saccade.tasks.moving_digits import FilmBatch, MovingDigits
    from saccade.tasks.multi30k import read_multi30k
    from saccade.tasks.news_cloze import read_news_cloze, read_question_file
    from saccade.tasks.pairs import PairBatch, Pairs, encode_pairs, encode_sources
    from saccade.tasks.pen_batches import PenBatches
    from saccade.tasks.pen_words import PenSplits, PenWords, read_pen_words
    from saccade.tasks.photographs import Photographs
    from saccade.tasks.programs import Program, make_programs, program_coder, scramble
    from saccade.tasks.ragged import Padded, Ragged
    from saccade.tasks.row_mnist import RowBatch, row_batches
    from saccade.tasks.scenes import Scene, Scenes, make_scenes
    from saccade.tasks.sentence_pairs import PairSplits, SentencePairs, read_parallel
    from saccade.tasks.sentences import split_sentences
    from saccade.tasks.sorting import SortBatch, sort_batch
    from saccade.tasks.spelled_words import SpelledWords
    from saccade.tasks.spoken_digits import (
        Recordings,
        RecordingSplits,
        at_speeds,
        read_spoken_digits,
        split_recordings,
    )
    from saccade.tasks.stories import Stories, StoryBatch
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
    from saccade.tasks.video_features import read_video_features
    from saccade.tasks.vocabulary import Vocabulary
    from saccade.tasks.waves import read_wave

# Module -> names: loaded when first used, so that data sets can be listed without torch.
_MODULES = {
    "adding": ("AddingBatch", "adding_batch", "adding_batches"),
    "babi": ("BabiSplits", "Question", "parse_stories", "read_babi"),
    "binarised": ("BinarisedDigits", "binarise"),
    "bit_sequences": (
        "BitBatch",
        "copy_batch",
        "priority_sort_batch",
        "recall_batch",
        "repeat_copy_batch",
    ),
    "book_cloze": ("ClozeSplits", "book_questions", "read_book_cloze"),
    "cloze": ("Cloze", "ClozeBatch", "ClozeQuestion", "make_question"),
    "caption_scenes": ("CaptionScenes", "SceneBatch"),
    "captions": ("Sentences",),
    "coder": ("Coder",),
    "coders": (
        "CharacterCoder",
        "WordCoder",
        "coder_from_json",
        "load_coder",
        "save_coder",
    ),
    "copying": ("CopyingBatch", "copying_baseline", "copying_batch", "copying_batches"),
    "curricula": ("Curriculum", "Difficulty"),
    "data_sets": ("DATA_SETS", "DataFile", "DataSet"),
    "fetch": ("Listed", "fetch_data", "find_data", "list_data"),
    "flickr8k": ("read_flickr8k",),
    "fra_eng": ("read_fra_eng",),
    "frame_batch": ("FrameBatch", "Frames", "Spelling"),
    "images": ("ImageBatch", "as_images"),
    "interpreter": ("execute",),
    "joined_digits": ("JoinedDigits", "Joining"),
    "karpathy": ("read_karpathy",),
    "linearised": ("Delinearised", "delinearise", "linearise"),
    "mel_spectrum": ("log_mel",),
    "mixed_words": ("MixedWords",),
    "mnist": ("Digits", "read_mnist"),
    "moving_digits": ("FilmBatch", "MovingDigits"),
    "multi30k": ("read_multi30k",),
    "news_cloze": ("read_news_cloze", "read_question_file"),
    "pairs": ("PairBatch", "Pairs", "encode_pairs", "encode_sources"),
    "pen_batches": ("PenBatches",),
    "pen_words": ("PenSplits", "PenWords", "read_pen_words"),
    "photographs": ("Photographs",),
    "programs": ("Program", "make_programs", "program_coder", "scramble"),
    "ragged": ("Padded", "Ragged"),
    "row_mnist": ("RowBatch", "row_batches"),
    "scenes": ("Scene", "Scenes", "make_scenes"),
    "sentence_pairs": ("PairSplits", "SentencePairs", "read_parallel"),
    "sorting": ("SortBatch", "sort_batch"),
    "sentences": ("split_sentences",),
    "spelled_words": ("SpelledWords",),
    "spoken_digits": (
        "Recordings",
        "RecordingSplits",
        "at_speeds",
        "read_spoken_digits",
        "split_recordings",
    ),
    "stories": ("Stories", "StoryBatch"),
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
    "video_features": ("read_video_features",),
    "vocabulary": ("Vocabulary",),
    "waves": ("read_wave",),
}
__all__ = [
    "BOS",
    "DATA_SETS",
    "EOS",
    "PAD",
    "SYMBOLS",
    "UNK",
    "AddingBatch",
    "BabiSplits",
    "BinarisedDigits",
    "BitBatch",
    "CaptionScenes",
    "CharacterCoder",
    "Cloze",
    "ClozeBatch",
    "ClozeQuestion",
    "ClozeSplits",
    "Coder",
    "CopyingBatch",
    "Curriculum",
    "DataFile",
    "DataSet",
    "Delinearised",
    "Difficulty",
    "Digits",
    "FilmBatch",
    "FrameBatch",
    "Frames",
    "ImageBatch",
    "JoinedDigits",
    "Joining",
    "Listed",
    "MixedWords",
    "MovingDigits",
    "Padded",
    "PairBatch",
    "PairSplits",
    "Pairs",
    "PenBatches",
    "PenSplits",
    "PenWords",
    "Photographs",
    "Program",
    "Question",
    "Ragged",
    "RecordingSplits",
    "Recordings",
    "RowBatch",
    "Scene",
    "SceneBatch",
    "Scenes",
    "SentencePairs",
    "Sentences",
    "SortBatch",
    "SpelledWords",
    "Spelling",
    "Stories",
    "StoryBatch",
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
    "at_speeds",
    "binarise",
    "book_questions",
    "coder_from_json",
    "copy_batch",
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
    "log_mel",
    "make_corpus",
    "make_programs",
    "make_question",
    "make_scenes",
    "parse_stories",
    "priority_sort_batch",
    "program_coder",
    "read_babi",
    "read_book_cloze",
    "read_flickr8k",
    "read_fra_eng",
    "read_karpathy",
    "read_mnist",
    "read_multi30k",
    "read_news_cloze",
    "read_parallel",
    "read_pen_words",
    "read_question_file",
    "read_spoken_digits",
    "read_tinyshakespeare",
    "read_treebank",
    "read_trees",
    "read_video_features",
    "read_wave",
    "recall_batch",
    "repeat_copy_batch",
    "row_batches",
    "save_coder",
    "score_trees",
    "scramble",
    "sort_batch",
    "split_recordings",
    "split_sentences",
    "split_text",
    "stream_batches",
    "word_class",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"saccade.tasks.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
