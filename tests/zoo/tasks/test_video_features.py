"""Films as features that were made before: the published forms, and what does not fit."""

import pytest
import torch

from saccade.errors import TaskError
from saccade.store.folder import save_tensors
from saccade.zoo.tasks.videos import read_video_features

SENTENCES = "vid1\ta cat plays\nvid2\ta man runs\nvid1\tthe cat moves\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sents_val_lc_nopunc.txt").write_text(SENTENCES)
    lines = [
        f"vid{clip}_frame_{frame},{clip}.5,{frame}"
        for clip in (2, 1)
        for frame in (10, 1, 2, 3, 4, 5)  # sorted as numbers, not as words
    ]
    (tmp_path / "yt_allframes_vgg_fc7_val.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_frames_in_lines_are_read_in_order_and_evenly_spaced(folder):
    films = read_video_features(folder, "valid", n_frames=3)
    assert films.names == ("vid1", "vid2")
    assert films.features.tolist() == [
        [[1.5, 2.0], [1.5, 4.0], [1.5, 10.0]],
        [[2.5, 2.0], [2.5, 4.0], [2.5, 10.0]],
    ]
    assert films.references() == [["a cat plays", "the cat moves"], ["a man runs"]]


def test_tensors_named_for_the_clips_are_read_too(folder):
    save_tensors(
        folder / "features.safetensors", {f"vid{n}": torch.full((n, 5), n / 2) for n in (1, 2)}
    )
    films = read_video_features(folder, "valid", n_frames=4)
    assert films.features.shape == (2, 4, 5) and (films.features[1] == 1.0).all()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sents_val_lc_nopunc.txt", "vid1 no tab\n", "line 1 of .* has no sentence: 'vid1 no tab'"),
        ("sents_val_lc_nopunc.txt", "vid9\ta cat\n", "1 of 1 clips .* no features, such as vid9"),
        ("yt_allframes_vgg_fc7_val.txt", "vid1,0.5\n", "line 1 of .* is no frame: 'vid1,0.5'"),
        ("yt_allframes_vgg_fc7_val.txt", "vid1_frame_1,x\n", "line 1 of .* is no frame"),
        (
            "yt_allframes_vgg_fc7_val.txt",
            "vid1_frame_1,1\nvid1_frame_2,1,2\nvid2_frame_1,1\n",
            "not all of one size",
        ),
        ("other_val.txt", "", r"expected features.safetensors or one file \*_val.txt .*, found 2"),
    ],
)
def test_what_does_not_fit_is_refused(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        read_video_features(folder, "valid")
