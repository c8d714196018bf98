"""The ablation check compares a lens with what really happens to the model."""

import pytest
import torch

from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.lenses.lens import Lens
from saccade.interp.lenses.residual_lenses import HeadLogitLens, LogitLens
from saccade.interp.studies.fidelity.ablation_check import check_ablation
from saccade.interp.studies.fidelity.stage import FIRST, Stage

WINDOWS, WINDOW = 7, 19


@pytest.fixture(scope="module")
def stage(stories, unseen):
    return Stage.of(stories, unseen.windows[:WINDOWS, :WINDOW], 3)


class Oracle(Lens):
    """A lens that runs the model itself: it knows what removing each head does."""

    kind, site = "oracle", "head"

    def __init__(self, stage: Stage, *, scale: float) -> None:
        super().__init__()
        self.stage, self.scale = stage, scale

    @classmethod
    def start(cls, model, layer):
        raise NotImplementedError

    def forward(self, activation, *, tokens=None):
        stage, logits = self.stage, []
        rows = activation.unflatten(0, (stage.n_windows, -1))
        for head in range(activation.shape[1]):
            z = stage.rerun.z[:, :, head].clone()
            # The first positions are not shown to a lens; it takes what the check puts there.
            if not torch.equal(rows[:, :, head], z[:, FIRST:]):
                z = torch.cat([self.first(rows)[:, :, head], rows[:, :, head]], 1)
            logits.append(self.scale * stage.answer(head, z))
        return torch.stack(logits, 1)

    def first(self, rows):
        is_mean = torch.equal(rows[0, 0], rows[1, 1])
        z = self.stage.rerun.z[:, :FIRST]
        return self.stage.mean.expand_as(z) if is_mean else z.roll(self.shift(rows), dims=0)

    def shift(self, rows):
        own = self.stage.rerun.z[:, FIRST:]
        return next(k for k in range(1, len(own)) if torch.equal(own.roll(k, dims=0), rows))


def test_a_lens_that_knows_the_model_has_a_fidelity_of_one(stage):
    found = check_ablation(
        stage, {"truth": Oracle(stage, scale=0.3), "lie": Oracle(stage, scale=-1)}
    )
    assert (found["truth"].correlations()[0] > 0.999).all()
    assert (found["truth"].alignments()[0] > 0.999).all()
    assert (found["lie"].correlations()[0] < -0.999).all()


def test_the_model_answers_as_an_intervention_on_all_of_it_does(stories, stage):
    head = 5
    everywhere = stage.mean[head].expand(WINDOWS, WINDOW, -1)
    change = Ablate(stage.layer, head, by="mean", value=stage.mean[head])
    with intervene(stories, change):
        final = capture(stories, stage.rerun.ids, layers=[]).final[:, FIRST:]
    expected = stories.unembedding.logits(final.flatten(0, 1), tokens=stage.tokens.ids)
    torch.testing.assert_close(stage.answer(head, everywhere), expected, rtol=1e-4, atol=1e-3)


def test_a_direct_lens_reads_the_same_states_as_a_capture_of_the_run(stories, stage):
    from saccade.interp.heads.residual_path import direct_states

    lens = HeadLogitLens.start(stories, stage.layer)
    captured = capture(stories, stage.rerun.ids, layers=[stage.layer], residual=True)
    direct = direct_states(stories, captured, stage.layer)[:, FIRST:].flatten(0, 1)
    expected = lens(direct, tokens=stage.tokens.ids)
    torch.testing.assert_close(stage.lens_logits(lens, stage.z), expected, rtol=1e-4, atol=1e-4)


def test_the_kl_of_a_lens_is_that_over_the_whole_vocabulary(stories, story_lenses, stage):
    lens = story_lenses.by_layer[3]
    final = stage.rerun.final[:, FIRST:].flatten(0, 1)
    log_p = stories.unembedding.logits(final).log_softmax(-1)[:, None]
    log_q = lens(stage.z).log_softmax(-1)
    expected = (log_p.exp() * (log_p - log_q)).sum(-1).mean(0)
    torch.testing.assert_close(stage.kl(lens).mean(0), expected, rtol=1e-4, atol=1e-4)


def test_metrics_are_of_the_requested_heads(story_lenses, stage):
    lens = {"lens": story_lenses.by_layer[3]}
    every = check_ablation(stage, lens)["lens"]
    ticks = []
    some = check_ablation(stage, lens, heads=[6, 1], tick=lambda: ticks.append(1))["lens"]
    assert some.heads == (6, 1)
    assert len(ticks) == 4  # removed and resampled
    torch.testing.assert_close(some.correlations()[0], every.correlations()[0, [6, 1]])
    found = some.correlation(1)
    assert found.low <= found.value <= found.high


def test_a_lens_of_the_residual_stream_is_refused(stories, stage):
    from saccade.errors import LensError

    with pytest.raises(LensError, match="reads the residual stream, not a head"):
        check_ablation(stage, {"logit": LogitLens.start(stories, 3)})
