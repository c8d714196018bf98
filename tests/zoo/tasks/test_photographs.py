"""Photographs and captions: real ones, the forms they come in, and what is broken."""

import io
import json
import sys
import tarfile

import pytest
import torch
from PIL import Image

from saccade.errors import MissingPackageError, TaskError
from saccade.zoo.tasks.digit_captions import Sentences
from saccade.zoo.tasks.photographs import (
    Captioned,
    EncodedPhotographs,
    PhotographBatches,
    centre_crop,
    decode_image,
    image_files,
    load_photographs,
    part_of,
    read_captions,
    read_flickr8k,
    read_karpathy,
    read_karpathy_captions,
    read_other_sentences,
)
from saccade.zoo.tasks.vocabulary import Ragged, Vocabulary


def jpeg(colour, size=(30, 20)):
    held = io.BytesIO()
    Image.new("RGB", size, colour).save(held, format="PNG")
    return held.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Twenty small images in Flickr8k's form."""
    place = tmp_path / "flickr8k-1000"
    (place / "Images").mkdir(parents=True)
    lines = ["image,caption"]
    for number in range(20):
        name = f"{number:02}.jpg"
        (place / "Images" / name).write_bytes(jpeg((10 * number, 0, 255)))
        lines += [f"{name},A dog , number {number} .", f'{name},"Dogs, and {number} cats"']
    (place / "captions.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_parts_of_real_photographs_are_apart_and_whole(data_with):
    data = data_with("flickr8k-1000")
    captioned = read_captions(data / "flickr8k-1000" / "captions.txt")
    parts = {part: part_of(captioned, part) for part in ("train", "valid", "test")}
    assert [len(each) for each in parts.values()] == [800, 100, 100]
    names = [each.name for part in parts.values() for each in part]
    assert len(set(names)) == 1000
    assert all(len(each.sentences) == 5 for each in captioned)
    test = read_flickr8k("test", data, size=32)
    assert list(test.names) == [each.name for each in parts["test"]]
    assert test.images.shape == (100, 3, 32, 32) and test.images.float().std() > 30
    others = read_other_sentences(data)
    assert len(others) == 40455 - 5000


def test_captions_are_plain_words_and_every_tenth_image_is_held_out(folder):
    train, valid, test = (
        read_flickr8k(part, folder, size=8) for part in ("train", "valid", "test")
    )
    assert (len(train), valid.names, test.names) == (
        16,
        ("08.jpg", "18.jpg"),
        ("09.jpg", "19.jpg"),
    )
    assert test.references()[0] == ["a dog number 9", "dogs and 9 cats"]
    assert test.images[0, :, 3, 3].tolist() == [90, 0, 255]


def test_images_come_out_of_an_archive_as_out_of_a_folder(folder, tmp_path):
    place = folder / "flickr8k-1000"
    with tarfile.open(tmp_path / "images.tar.gz", "w:gz") as archive:
        archive.add(place / "Images", "somewhere/else")
    names = ["03.jpg", "07.jpg"]
    assert image_files(tmp_path / "images.tar.gz", names) == image_files(place / "Images", names)


def test_a_batch_has_all_sentences_of_its_images_and_some_of_them_mirrored(folder):
    train = read_flickr8k("train", folder, size=8)
    left = torch.arange(8, dtype=torch.uint8).expand(16, 3, 8, 8)
    vocabulary = Vocabulary.build(words for each in train.sentences for words in each)
    others = Ragged.of([[5, 2], [6, 7, 2]])
    marked = EncodedPhotographs(left.contiguous(), train.said(vocabulary), others)
    sizes = {"batch": 5, "n_others": 3, "crop": 6}
    epochs = [list(PhotographBatches(marked, seed=1, epoch=epoch, **sizes)) for epoch in (0, 0, 1)]
    drawn = [row for batch in epochs[0] for row in batch.others.tolist()]
    assert {tuple(row[:2]) for row in drawn} == {(5, 2), (6, 7)} and len(drawn) == 12
    assert [len(batch.images) for batch in epochs[0]] == [5, 5, 5, 1]
    assert all(map(torch.equal, *([b.said for b in epoch] for epoch in epochs[:2])))
    assert not torch.equal(epochs[0][0].said, epochs[2][0].said)
    rows = torch.cat([batch.images[:, 0, 0] for batch in epochs[0]]) * 255  # [image, column]
    steps = rows.diff(dim=1).round()
    assert set(steps.flatten().tolist()) == {1.0, -1.0}
    words = vocabulary.decode(epochs[0][0].said[0, 0].tolist())
    assert words[:3] == ["a", "dog", "number"]
    assert torch.equal(centre_crop(left, 6), left[:, :, 1:7, 1:7] / 255)


def test_sentences_are_given_as_what_is_read_and_what_is_to_be_said():
    vocabulary = Vocabulary.build([["a", "b", "c"]])
    rows = Sentences.encode([["a"], ["c", "b"]], vocabulary)
    assert rows.target_in.tolist() == [[1, 4, 0], [1, 6, 5]]
    assert rows.target_out.tolist() == [[4, 2, 0], [6, 5, 2]]
    assert rows.target_mask.tolist() == [[True, True, False], [True, True, True]]
    assert rows.select(torch.tensor([0])).target_out.tolist() == [[4, 2]]


KARPATHY = {
    "dataset": "coco",
    "images": [
        {
            "filepath": "val2014",
            "filename": f"{number}.png",
            "split": split,
            "sentences": [{"tokens": ["a", "cat"], "raw": "A cat."}, {"tokens": [split]}],
        }
        for number, split in enumerate(("train", "restval", "val", "test"))
    ],
}


def test_the_form_of_karpathy_is_read_with_cocos_rest_to_learn_from(tmp_path):
    (tmp_path / "val2014").mkdir()
    for number in range(4):
        (tmp_path / "val2014" / f"{number}.png").write_bytes(jpeg((number, 1, 2)))
    file = tmp_path / "dataset_coco.json"
    file.write_text(json.dumps(KARPATHY))
    train = read_karpathy(file, "train", images=tmp_path, size=5)
    assert train.names == ("val2014/0.png", "val2014/1.png")
    assert train.sentences[1] == (("a", "cat"), ("restval",))
    assert train.images[1, :, 0, 0].tolist() == [1, 1, 2]
    assert read_karpathy_captions(file, "valid")[0].name == "val2014/2.png"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON: .* at line 1"),
        ('{"annotations": []}', "not in the format of Karpathy's splits: 'images' is missing"),
        ('{"images": [{"split": "test", "filename": "x"}]}', "'sentences' is missing"),
        ('{"images": []}', "no image of the part test"),
    ],
)
def test_a_file_that_is_not_karpathys_is_refused(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TaskError, match=message):
        read_karpathy_captions(tmp_path / "x.json", "test")


def test_what_is_no_image_is_refused_with_its_name(tmp_path):
    for data in (b"", b"no image", jpeg((1, 2, 3))[:40]):
        with pytest.raises(TaskError, match=r"a\.jpg is no image"):
            decode_image(data, "a.jpg", size=8)
    with pytest.raises(TaskError, match=r"1 of 1 images are not there, such as a\.jpg"):
        load_photographs([Captioned("a.jpg", (("a",),))], {}, size=8)
    (tmp_path / "x.tar.gz").write_bytes(b"no tar")
    with pytest.raises(TaskError, match="is a broken archive"):
        image_files(tmp_path / "x.tar.gz", ["a.jpg"])


def test_captions_without_their_form_or_their_images_are_refused(folder):
    file = folder / "flickr8k-1000" / "captions.txt"
    (folder / "flickr8k-1000" / "Images").rename(folder / "elsewhere")
    with pytest.raises(TaskError, match=r"there are captions in .* but no images"):
        read_flickr8k("test", folder, size=8)
    file.write_text("image,caption\nno comma here\n")
    with pytest.raises(TaskError, match=r"line 2 of .* has no caption"):
        read_captions(file)
    file.write_text("hello\n")
    with pytest.raises(TaskError, match="does not begin with the line image,caption"):
        read_captions(file)


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match="photographs needs the package 'pillow'"):
        decode_image(b"", "a.jpg", size=8)
