"""A small text of two sources and its atlas; tiny models of the families of the tests of heads/.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

# Tests are no package; families.py is beside the tests of heads/.
sys.path.insert(0, str(Path(__file__).parent.parent / "heads"))

from families import tiny

WINDOW = 48


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Models this small lose more by sharing their work than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def texts(stories, tmp_path_factory) -> list[str]:
    """Two text files of stories that the small model writes."""
    from saccade.interp.lenses.self_text import sample_batches

    folder, found = tmp_path_factory.mktemp("atlas"), []
    for name, seed in (("red", 3), ("blue", 4)):
        asked = {"n_tokens": 1500, "window": 61, "batch": 25, "seed": seed}
        batches = sample_batches(stories, **asked)
        lines = [
            line
            for batch in batches
            for line in stories.tokenizer.batch_decode(batch.ids, skip_special_tokens=True)
        ]
        path = folder / f"{name}.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        found.append(str(path))
    return found


@pytest.fixture(scope="session")
def config() -> Any:
    """Settings of the atlas."""
    from saccade.interp.atlas.atlas_config import AtlasConfig

    return AtlasConfig(tokens=1200, window=WINDOW, every=12)


@pytest.fixture(scope="session")
def atlas(stories, texts, config, chance_lenses) -> Any:
    """The atlas of both texts, with random lenses."""
    from saccade.interp.atlas.build import build_atlas

    return build_atlas(stories, texts, config, lenses=chance_lenses())


@pytest.fixture(scope="session")
def weights(stories, atlas) -> Any:
    """Hugging Face's attention weights of all windows, ``[batch, layer, head, query, key]``."""
    eager = stories.hf.__class__.from_pretrained(stories.name, attn_implementation="eager")
    with torch.no_grad():
        return torch.stack(eager(atlas.windows, output_attentions=True).attentions, 1)


@pytest.fixture(scope="session")
def opened() -> Any:
    """The tiny model of a family, with no two weights the same; made once."""
    from saccade.interp.heads.model import wrap_model

    made: dict[str, Any] = {}

    def make(family: str) -> Any:
        if family not in made:
            hf = copy.deepcopy(tiny(family))
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for weight in hf.parameters():
                    weight.add_(0.3 * weight.std() * torch.randn(weight.shape, generator=generator))
            made[family] = wrap_model(hf, None, name=family)
        return made[family]

    return make
