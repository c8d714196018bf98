"""How good an answer is: thin covers over well-kept libraries, own code where there is none."""

# Not found on first use, as elsewhere: many a function here is named like its module, and only an
# import that has been done once and for all gives the function and not the module.
from saccade.metrics.bleu import Bleu, bleu, sentence_bleu
from saccade.metrics.brackets import Bracket, BracketScore, score_brackets
from saccade.metrics.by_length import (
    LengthBucket,
    bleu_by_length,
    draw_bleu_by_length,
    save_bleu_by_length,
)
from saccade.metrics.chrf import Chrf, chrf
from saccade.metrics.cider import Cider, cider
from saccade.metrics.correlation import Correlation, correlation
from saccade.metrics.edits import EditRate, edit_distance, edit_rate
from saccade.metrics.embedding import EmbeddingSimilarity, embedding_scores, embedding_similarity
from saccade.metrics.exact import Accuracy, character_accuracy, exact_match, token_accuracy
from saccade.metrics.lepor import Lepor, lepor
from saccade.metrics.looking import weight_in_spans, weight_in_windows
from saccade.metrics.meteor import Meteor, meteor
from saccade.metrics.perplexity import Perplexity, perplexity
from saccade.metrics.references import References
from saccade.metrics.rouge import Overlap, Rouge, rouge
from saccade.metrics.ter import Ter, ter

__all__ = [
    "Accuracy",
    "Bleu",
    "Bracket",
    "BracketScore",
    "Chrf",
    "Cider",
    "Correlation",
    "EditRate",
    "EmbeddingSimilarity",
    "LengthBucket",
    "Lepor",
    "Meteor",
    "Overlap",
    "Perplexity",
    "References",
    "Rouge",
    "Ter",
    "bleu",
    "bleu_by_length",
    "character_accuracy",
    "chrf",
    "cider",
    "correlation",
    "draw_bleu_by_length",
    "edit_distance",
    "edit_rate",
    "embedding_scores",
    "embedding_similarity",
    "exact_match",
    "lepor",
    "meteor",
    "perplexity",
    "rouge",
    "save_bleu_by_length",
    "score_brackets",
    "sentence_bleu",
    "ter",
    "token_accuracy",
    "weight_in_spans",
    "weight_in_windows",
]
