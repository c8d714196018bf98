"""An atlas against the model itself: effects one prompt at a time, weights as Hugging Face has."""

from dataclasses import asdict, replace

import pytest
import torch

from saccade.errors import SaccadeError, StoreError, UsageError
from saccade.interp.atlas.atlas import load_atlas, merge_atlases
from saccade.interp.atlas.atlas_parts import with_sequences
from saccade.interp.atlas.build import build_atlas
from saccade.interp.atlas.sequences import chosen_windows
from saccade.interp.effects.effects import measure_effects
from saccade.interp.effects.replacement import Replacement
from saccade.interp.heads.model import open_model


def test_recorded_effects_are_those_of_the_prompt_alone(stories, atlas):
    replacement = Replacement.usual(stories)
    for row in range(0, len(atlas.records), 17):
        window, position = int(atlas.records.window[row]), int(atlas.records.position[row])
        ids = atlas.windows[window : window + 1, : position + 1]
        effects = measure_effects(stories, ids, replacement=replacement, top=5).effects[0]
        effects = list(effects.parts.values())
        expected = torch.tensor([each.kl for each in effects])
        torch.testing.assert_close(atlas.records.kl[row], expected, atol=1e-5, rtol=1e-3)
        for at in range(0, len(effects), 7):
            wanted = [(each.id, each.value) for each in effects[at].promotes]
            found = dict(
                zip(
                    atlas.records.promoted[row, at].tolist(),
                    atlas.records.promoted_by[row, at].tolist(),
                    strict=True,
                )
            )
            for token, change in wanted[:2]:
                assert found[token] == pytest.approx(change, abs=2e-3, rel=5e-3)


def test_the_loss_of_the_next_token_is_that_of_a_run_with_the_head_replaced(stories, atlas):
    from saccade.interp.heads.capture import capture
    from saccade.interp.heads.changes import Ablate
    from saccade.interp.heads.intervene import intervene

    mean = Replacement.usual(stories).heads
    for row, at in ((3, 5), (20, 33)):
        layer, head = atlas.sites[at]
        window, position = int(atlas.records.window[row]), int(atlas.records.position[row])
        ids = atlas.windows[window : window + 1, : position + 1]
        following = int(atlas.windows[window, position + 1])
        plain = stories.unembedding.logits(capture(stories, ids).final[0, -1]).log_softmax(-1)
        change = Ablate(layer, head, "mean", mean[layer][head], positions=[position])
        with intervene(stories, [change]):
            without = stories.unembedding.logits(capture(stories, ids).final[0, -1]).log_softmax(-1)
        lost = float(plain[following] - without[following])
        assert float(atlas.records.on_next[row, at]) == pytest.approx(lost, abs=2e-3)


def test_looks_are_means_over_the_weights_of_the_whole_text(stories, atlas, weights):
    is_text = stories.is_text(atlas.windows)
    n = atlas.windows.shape[1]
    for at in (0, 11, 39):
        layer, head = atlas.sites[at]
        rows = weights[:, layer, head]
        total = {"first": 0.0, "self_weight": 0.0, "previous": 0.0, "entropy": 0.0}
        mass = moment = square = 0.0
        for window in range(len(rows)):
            for query in range(n):
                if not is_text[window, query]:
                    continue
                row = rows[window, query, : query + 1].double()
                total["first"] += float(row[0])
                total["self_weight"] += float(row[query]) if query else 0.0
                total["previous"] += float(row[query - 1]) if query > 1 else 0.0
                total["entropy"] -= float((row * row.clamp_min(1e-30).log()).sum())
                for key in range(1, query + 1):
                    mass += float(row[key])
                    moment += float(row[key]) * (query - key)
                    square += float(row[key]) * (query - key) ** 2
        queries = int(is_text.sum())
        look = atlas.heads[at].look
        for name, value in total.items():
            assert getattr(look, name) == pytest.approx(value / queries, abs=1e-4), name
        assert look.distance == pytest.approx(moment / mass, rel=1e-3)
        assert look.distance_variance == pytest.approx(
            square / mass - (moment / mass) ** 2, rel=1e-3
        )


def test_induction_is_the_weight_just_after_earlier_occurrences(stories, atlas, weights):
    is_text = stories.is_text(atlas.windows)
    layer, head = atlas.sites[21]
    total, queries = 0.0, 0
    for window, ids in enumerate(atlas.windows.tolist()):
        for query in range(len(ids)):
            after = [key + 1 for key in range(query) if ids[key] == ids[query]]
            if after and is_text[window, query]:
                total += float(weights[window, layer, head, query, after].sum())
                queries += 1
    assert atlas.heads[21].look.induction == pytest.approx(total / queries, abs=1e-4)


def test_where_a_head_looks_at_a_recorded_position_is_the_models_own_attention(atlas, weights):
    for row in range(0, len(atlas.records), 23):
        window, position = int(atlas.records.window[row]), int(atlas.records.position[row])
        for at in (2, 27):
            layer, head = atlas.sites[at]
            own = weights[window, layer, head, position]
            best = own[: position + 1].topk(4)
            torch.testing.assert_close(
                atlas.records.looked_by[row, at].float(), best.values, atol=1e-3, rtol=1e-2
            )
            assert int(atlas.records.looked[row, at, 0]) == int(best.indices[0])


def test_a_build_of_two_texts_is_the_merge_of_the_builds_of_each_to_the_last_bit(
    stories, texts, config, atlas, chance_lenses
):
    half = replace(config, tokens=config.tokens // 2)
    parts = [build_atlas(stories, text, half, lenses=chance_lenses()) for text in texts]
    merged = with_sequences(stories, merge_atlases(parts))
    for name, value in atlas.records.tensors().items():
        assert torch.equal(getattr(merged.records, name), value), name
    for name, value in atlas.sums.items():
        assert torch.equal(merged.sums[name], value), name
    assert torch.equal(merged.windows, atlas.windows)
    assert torch.equal(merged.extra["sequences.window"], atlas.extra["sequences.window"])
    assert merged.provenance.config == atlas.provenance.config
    assert merged.heads == atlas.heads


def test_saved_and_loaded_an_atlas_is_the_same(atlas, tmp_path):
    atlas.save(tmp_path / "a")
    found = load_atlas(tmp_path / "a")
    assert found.provenance == atlas.provenance
    assert found.heads == atlas.heads
    assert dict(found.tokens) == dict(atlas.tokens)
    for name, value in atlas.records.tensors().items():
        assert torch.equal(getattr(found.records, name), value), name


def test_some_heads_alone_are_measured_as_with_all(stories, texts, config, atlas):
    part = build_atlas(stories, texts, config, heads=[(3, None), (1, 6)])
    assert part.sites == [(1, 6), *((3, head) for head in range(8))]
    at = [atlas.index(*site) for site in part.sites]
    torch.testing.assert_close(part.records.kl, atlas.records.kl[:, at], atol=1e-6, rtol=1e-4)
    for i, head in zip(at, part.heads, strict=True):
        assert asdict(head.look) == pytest.approx(asdict(atlas.heads[i].look), abs=1e-5)


def test_sampled_sequences_show_the_models_own_weights(atlas, weights):
    keys, kept = atlas.extra["sequences.keys"], atlas.extra["sequences.weights"]
    for at in (4, 30):
        layer, head = atlas.sites[at]
        for number, window in enumerate(atlas.extra["sequences.window"][at].tolist()):
            if window < 0:
                continue
            own = weights[window, layer, head].clone()
            own[:, 0] = 0
            best = own.topk(8, dim=-1).values
            expected = torch.where(best < 0.005, 0, best)
            torch.testing.assert_close(kept[at, number].float(), expected, atol=2e-3, rtol=5e-3)
            found = own.gather(1, keys[at, number].long())
            shown = kept[at, number] > 0
            torch.testing.assert_close(
                found[shown], kept[at, number].float()[shown], atol=2e-3, rtol=5e-3
            )


def test_the_strongest_sequences_come_first_and_the_others_lie_in_their_fifths(atlas):
    """Of 60 windows: the ten strongest, then three of each further twelve."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 500, (60, 7), generator=generator)
    peaks = torch.rand(60, 40, generator=generator).half()
    source = torch.zeros(60, dtype=torch.long)
    many = replace(atlas, windows=ids, peaks=peaks, source=source)
    windows = chosen_windows(many)
    for at in range(0, 40, 9):
        ordered = sorted(range(60), key=lambda window, at=at: -float(peaks[window, at]))
        # Random peaks of half precision may tie: values are compared, not windows.
        found = peaks[windows[at], at].tolist()
        assert found[:10] == peaks[ordered[:10], at].tolist()
        for fifth in range(1, 5):
            shown = found[7 + 3 * fifth : 10 + 3 * fifth]
            inside = peaks[ordered[12 * fifth : 12 * fifth + 12], at].tolist()
            assert set(shown) <= set(inside) and shown != inside[:3]
        assert len(set(windows[at].tolist())) == 22
    few = chosen_windows(replace(many, windows=ids[:3], peaks=peaks[:3], source=source[:3]))
    assert sorted(few[0].tolist()) == [-1] * 19 + [0, 1, 2]


def test_lenses_are_read_at_a_part_of_the_positions_as_the_reader_reads_them(
    stories, atlas, chance_lenses
):
    from saccade.interp.heads.capture import capture
    from saccade.interp.lenses.top_tokens import lens_prediction

    assert 0 < len(atlas.records.lens_at) < len(atlas.records)
    lenses = chance_lenses()
    row = int(atlas.records.lens_at[2])
    window, position = int(atlas.records.window[row]), int(atlas.records.position[row])
    captured = capture(stories, atlas.windows[window : window + 1, : position + 1])
    for layer in (0, 4):
        logits = lenses.by_layer[layer](captured.z[layer][:, -1])[0]
        expected = lens_prediction(logits, lenses.baseline, top=1).kl_from_baseline
        mine = [at for at, site in enumerate(atlas.sites) if site[0] == layer]
        torch.testing.assert_close(
            atlas.records.lens_kl[2, mine].float(), expected, atol=1e-3, rtol=5e-3
        )


def test_an_atlas_of_another_model_is_refused(stories, atlas, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(stories.name, tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name] * 1.5}, tmp_path / "other" / "model.safetensors")
    with pytest.raises(UsageError, match="this is the atlas of"):
        with_sequences(open_model(tmp_path / "other"), atlas)


def test_a_damaged_atlas_is_refused(atlas, tmp_path):
    atlas.save(tmp_path / "a")
    file = tmp_path / "a" / "records.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"checksum|damaged"):
        load_atlas(tmp_path / "a")


def test_what_cannot_be_merged_is_said(stories, texts, config, atlas):
    with pytest.raises(SaccadeError, match="one text with itself"):
        merge_atlases([atlas, atlas])
    other = build_atlas(stories, texts[0], replace(config, tokens=96, seed=9), heads=[(0, 1)])
    with pytest.raises(SaccadeError, match="their sites differ"):
        merge_atlases([atlas, other])
    with pytest.raises(UsageError, match="at least two"):
        merge_atlases([atlas])


def test_heads_and_texts_that_are_not_there_are_refused(stories, texts, config, atlas):
    with pytest.raises(UsageError, match=r"no head 9\.1"):
        atlas.index(9, 1)
    with pytest.raises(UsageError):
        build_atlas(stories, texts, config, heads=[(0, 8)])
    with pytest.raises(UsageError, match="less than one window"):
        build_atlas(stories, texts, replace(config, tokens=60))
