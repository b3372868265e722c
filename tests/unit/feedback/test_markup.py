"""Answers on the page: Markdown that can do nothing, and no name of a policy in it."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.blinding import MASK, masked, names_a_policy
from feedback.web.markup import LONGEST_MARKDOWN, to_html


class Collector(HTMLParser):
    """Every element's tag and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


def elements(html: str) -> list[tuple[str, dict[str, str]]]:
    collector = Collector()
    collector.feed(html)
    return collector.found


POLICIES = ("smollm2-135m@0123456789ab", "import:Old Model")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**bold** `x < 1`", "<p><strong>bold</strong> <code>x &lt; 1</code></p>\n"),
        (
            "```python\na = '<b>'\n```",
            "<pre><code class=\"language-python\">a = '&lt;b&gt;'\n</code></pre>\n",
        ),
        (
            "[site](https://example.org/?a=1&b=2)",
            '<p><a href="https://example.org/?a=1&amp;b=2" target="_blank" rel="noopener noreferrer nofollow">'  # noqa: E501
            "site</a></p>\n",
        ),
        ("~~gone~~", "<p><s>gone</s></p>\n"),
    ],
)
def test_markdown_by_hand(text: str, expected: str):
    assert to_html(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![track](https://example.org/x.png)",
        "[a](javascript:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "<https://example.org/'onmouseover=alert(1)>",
        "<iframe src='https://example.org'></iframe><style>*{display:none}</style><form action='/vote'>",
        "[a](https://example.org 'x\" onclick=\"alert(1)')",
        "\x00<svg/onload=alert(1)>",
    ],
)
def test_nothing_that_acts_gets_through(text: str):
    for tag, attributes in elements(to_html(text)):
        assert tag in {"p", "a"}
        assert attributes.keys() <= {"href", "title", "rel", "target"}
        assert attributes.get("href", "https:").startswith("https:")


@given(st.text(st.characters(), max_size=200), st.sampled_from(["", "    ", "> ", "- ", "`", "<", "[a]("]))
def test_any_text_is_rendered_into_harmless_elements_alone(text: str, start: str):
    for tag, attributes in elements(to_html(start + text)):
        assert tag not in {"script", "img", "iframe", "style", "form", "svg", "input", "meta", "object"}
        assert not any(name.startswith("on") or name == "style" for name in attributes)


def test_a_text_too_long_for_markdown_is_shown_as_it_is():
    html = to_html("*a*<b>" + "x" * LONGEST_MARKDOWN)
    assert html.startswith('<pre class="plain">*a*&lt;b&gt;xxx')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I am SmolLM2-135M.", f"I am {MASK}."),
        ("smollm2 135m and SMOLLM2_135M", f"{MASK} and {MASK}"),
        ("version 0123456789AB!", f"version {MASK}!"),
        ("the old model, old_model", f"the {MASK}, {MASK}"),
        ("smollm3-135m, presmollm2-135mx", "smollm3-135m, presmollm2-135mx"),
        ("an important human edit", "an important human edit"),
    ],
)
def test_names_of_policies_are_masked(text: str, expected: str):
    assert masked(text, POLICIES) == expected
    assert names_a_policy(["", text], POLICIES) == (MASK in expected)


def test_short_names_are_left_alone():
    assert masked("a b a1", ("a@b1", "a1@1")) == "a b a1"
