"""The page of a trace: nothing from elsewhere, and labels that are only labels."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch

from saccade.trace.page import trace_html
from saccade.trace.trace import Trace


@pytest.fixture
def heads():
    torch.manual_seed(0)
    return Trace(
        kind="attention",
        steps=("</script>", "<b>x", "\u2028"),
        memory=("&amp;", '"', "'", "<!--", "a"),
        weights=torch.randn(7, 3, 5).softmax(-1),
        views=tuple(f"0.{head}" for head in range(7)),
        title="<i>title",
    )


def data_of(page):
    (found,) = re.findall(r'id="traces">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found, self.links = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


def test_the_page_holds_every_weight_and_the_mean_first(heads):
    (found,) = data_of(trace_html(heads))
    assert found["steps"] == list(heads.steps) and found["memory"] == list(heads.memory)
    assert found["views"] == ["mean of all", *heads.views]
    weights = torch.tensor(found["weights"])
    torch.testing.assert_close(weights[1:], heads.weights, atol=5e-5, rtol=0)
    torch.testing.assert_close(weights[0], heads.weights.mean(0), atol=5e-5, rtol=0)


def test_labels_cannot_break_out_of_the_page(heads):
    tags = Tags(trace_html(heads))
    assert tags.found.count("script") == 2 and "b" not in tags.found and "i" not in tags.found


def test_it_asks_nothing_from_anywhere(heads):
    page = trace_html(heads)
    assert not Tags(page).links and "http" not in page and "import" not in page


def test_several_traces_are_on_one_page(heads):
    one = Trace(kind="self-attention", steps=("a",), memory=("b",), weights=torch.ones(1, 1))
    page = trace_html([heads, one], title="both")
    assert [found["kind"] for found in data_of(page)] == ["attention", "self-attention"]
    assert data_of(page)[1]["views"] == [] and "<title>both</title>" in page
