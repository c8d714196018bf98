"""`tools/lengths.py`: BLEU by sentence length, as a table, as JSON and as a picture."""

import json

import pytest

from lengths import draw_bleu_by_length, length_curves, save_bleu_by_length
from saccade.errors import UsageError
from saccade.zoo.metrics.sequence_metrics import bleu_by_length
from saccade.zoo.training.run_folder import RunFolder

GERMAN = ["Ein Hund läuft .", "Eine Katze schläft .", "Ein kleiner Hund schläft im Gras ."]
ENGLISH = ["A dog runs .", "A cat sleeps .", "A small dog sleeps in the grass ."]
ANSWERS = ["the cat sat down", "a dog ran far away today", "the cat sat on the big red mat", "no"]
REFERENCES = ["the cat sat there", "a dog ran far away now", "the cat sat on a big red mat", "yes"]
LENGTHS = [4, 6, 8, 1]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A Multi30k of three sentences, seven times: two of four words and one of seven."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "multi30k").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "\n".join(lines * 7) + "\n"
            (folder / "multi30k" / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """A translator, trained for a moment and evaluated, and a folder as an ensemble leaves it."""
    from saccade.cli.main import main

    folder = tmp_path_factory.mktemp("runs")
    words = ["d_hidden=11", "d_embed=7", "n_pieces=60", "steps=4", "log_steps=2", "minutes=0"]
    changes = [word for each in words for word in ("--set", each)]
    out = ["--data", str(data), "--out", str(folder / "one"), "--json"]
    assert main(["train", "seq2seq-multi30k", *changes, *out]) == 0
    one = RunFolder(folder / "one")
    test = {"bleu_of_1_to_5_words": 30.5, "bleu_of_6_to_9_words": 12.25, "bleu": 20.0}
    both = RunFolder(folder / "both")
    both.begin({**one.manifest, "runs": ["one", "one"]}, {})
    both.write_metrics({**one.metrics, "test": test})
    return folder


def test_a_curve_has_the_scores_of_the_run_and_the_lengths_of_the_data(runs, data):
    curves = length_curves([runs / "both"], data)
    short, long = curves["both"]
    assert (short.shortest, short.longest, short.n_sentences, short.bleu) == (1, 5, 14, 30.5)
    assert (long.shortest, long.longest, long.n_sentences, long.bleu) == (6, 9, 7, 12.25)
    assert (short.mean_length, long.mean_length) == (4.0, 7.0)


def test_what_evaluation_leaves_makes_a_curve_over_all_sentences(runs, data):
    (curve,) = length_curves([runs / "one"], data).values()
    assert sum(each.n_sentences for each in curve) == len(GERMAN) * 7
    metrics = RunFolder(runs / "one").metrics["test"]
    names = [f"bleu_of_{each.shortest}_to_{each.longest}_words" for each in curve]
    assert [each.bleu for each in curve] == [metrics[name] for name in names]


def test_it_is_shown_and_drawn(tool, runs, data, tmp_path):
    picture, both = tmp_path / "lengths.png", (runs / "one", runs / "both")
    code, out, err = tool("lengths", *both, "--data", data, "--png", picture)
    head, *lines = out.splitlines()
    assert code == 0 and f"wrote {picture}" in err
    assert head.split() == ["words", "sentences", "one", "both"]
    assert [line.split()[-1] for line in lines if line.split()[0] == "1-5"] == ["30.5"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    code, out, _ = tool("lengths", both[1], "--data", data, "--json")
    (curve,) = json.loads(out).values()
    assert code == 0 and [each["n_sentences"] for each in curve] == [14, 7]
    assert curve[0]["shortest"] <= curve[0]["mean_length"] <= curve[0]["longest"]


def test_a_run_that_was_not_evaluated_or_is_no_translator_has_no_curve(
    tool, runs, data, tiny_run, tmp_path, told_in_a_line
):
    (run := tmp_path / "half").mkdir()
    (run / "manifest.json").write_text((runs / "one" / "manifest.json").read_text())
    code, _, err = tool("lengths", run, "--data", data)
    assert code == 1 and "has no BLEU by sentence length yet" in told_in_a_line(err)
    assert f"hint: saccade eval {run}" in err
    code, _, err = tool("lengths", tiny_run, "--data", data)
    assert code == 1 and "a run of tiny-mirror, which is no translator" in told_in_a_line(err)


def test_several_systems_are_drawn_into_one_picture(tmp_path):
    curves = {
        "plain": bleu_by_length(ANSWERS, REFERENCES, LENGTHS, edges=[4, 6]),
        "attention": bleu_by_length(REFERENCES, REFERENCES, LENGTHS, edges=[4, 6]),
    }
    (axes,) = draw_bleu_by_length(curves).axes
    assert [line.get_label() for line in axes.lines] == ["plain", "attention"]
    for line, buckets in zip(axes.lines, curves.values(), strict=True):
        assert list(line.get_xdata()) == [bucket.mean_length for bucket in buckets]
        assert list(line.get_ydata()) == [bucket.bleu for bucket in buckets]
    assert axes.lines[0].get_marker() != axes.lines[1].get_marker()
    save_bleu_by_length(tmp_path / "bleu.png", curves)
    assert (tmp_path / "bleu.png").read_bytes().startswith(b"\x89PNG")


def test_no_curve_is_no_picture():
    with pytest.raises(UsageError, match="there is no curve to draw"):
        draw_bleu_by_length({})
