import pytest

from saccade.errors import UsageError
from saccade.zoo.metrics.sequence_metrics import bleu_by_length
from saccade.zoo.metrics.translation_metrics import bleu

ANSWERS = ["the cat sat down", "a dog ran far away today", "the cat sat on the big red mat", "no"]
REFERENCES = ["the cat sat there", "a dog ran far away now", "the cat sat on a big red mat", "yes"]
LENGTHS = [4, 6, 8, 1]


def test_each_bucket_has_the_score_of_its_own_sentences():
    buckets = bleu_by_length(ANSWERS, REFERENCES, LENGTHS, edges=[4, 6, 7])
    assert [(b.shortest, b.longest, b.n_sentences) for b in buckets] == [
        (1, 4, 2),
        (6, 6, 1),
        (8, 8, 1),
    ]
    assert buckets[0].mean_length == 2.5
    rows = [[0, 3], [1], [2]]
    for bucket, held in zip(buckets, rows, strict=True):
        wanted = bleu([ANSWERS[k] for k in held], [REFERENCES[k] for k in held]).score
        assert bucket.bleu == pytest.approx(wanted)


def test_all_sentences_are_in_one_bucket_or_another():
    for edges in ([], [3], [100], [1, 2, 3, 4, 5, 6, 7, 8]):
        buckets = bleu_by_length(ANSWERS, REFERENCES, LENGTHS, edges=edges)
        assert sum(bucket.n_sentences for bucket in buckets) == 4


def test_what_makes_no_buckets_is_refused():
    with pytest.raises(UsageError, match=r"the edges \[5, 3\] do not increase"):
        bleu_by_length(ANSWERS, REFERENCES, LENGTHS, edges=[5, 3])
    with pytest.raises(UsageError, match="3 lengths and 4 references"):
        bleu_by_length(ANSWERS, REFERENCES, LENGTHS[:3])
