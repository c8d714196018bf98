"""`saccade demo`, on the little model in place of the default one."""

import pytest

PROMPT = "Once upon a time, there was a little"


@pytest.fixture
def demo(saccade, stories, monkeypatch):
    monkeypatch.setattr("saccade.interp.heads.model.open_model", lambda *_, **__: stories)
    monkeypatch.setattr("saccade.interp.lenses.fit.WINDOW", 24)

    def run(*options, prompt=PROMPT):
        return saccade("demo", "--prompt", prompt, "--tokens", 700, *options)

    return run


def test_it_fits_once_reads_a_prompt_and_says_how_to_go_on(demo, stories):
    from saccade.interp.lenses.lens_set import default_lens_path

    code, out, err = demo()
    assert code == 0
    assert f"fitting 40 lenses on 700 tokens that {stories.name} writes itself" in err
    # Two readings on stdout: what the heads do, then also what their lenses predict.
    assert out.count("predicts") == 2 and out.index("promotes") < out.index("  lens  ")
    assert out[: out.index("  lens  ")].count("  effect  ") > out.count("  lens  ")
    for command in ("saccade read", "saccade lens fit --corpus", "saccade view"):
        assert command in out
    path = default_lens_path(stories)
    written = (path / "manifest.json").stat().st_mtime_ns
    code, again, err = demo()
    assert code == 0 and "using the lenses in" in err and "fitting" not in err
    assert out.endswith(again) and again.count("predicts") == 1
    assert (path / "manifest.json").stat().st_mtime_ns == written
    code, _, err = demo("--again")
    assert code == 0 and "fitting 40 lenses" in err
    assert (path / "manifest.json").stat().st_mtime_ns != written


@pytest.mark.parametrize(
    ("prompt", "tokens"), [(" ", "the text is empty"), ("a " * 600, "the text is too long")]
)
def test_a_prompt_that_cannot_be_read_is_refused_before_the_fit(
    demo, told_in_a_line, prompt, tokens
):
    code, out, err = demo(prompt=prompt)
    assert (code, out) == (2, "")
    assert tokens in told_in_a_line(err)
    assert "fitting" not in err
