"""Markdown of answers as HTML that can do nothing: no scripts, no pictures, no forms, no styles.

markdown-it-py renders with raw HTML off; nh3 (the ammonia sanitiser) then lets a short list of tags through,
so that a fault in one of the two is caught by the other. Pictures are left out because loading one would
tell its server that, and from where, the answer is being read.
"""

import html

import nh3
from markdown_it import MarkdownIt

from ratchet.prompts import storable

LONGEST_MARKDOWN = 60_000
"""Longer texts are shown as they are: parsing them would keep the page waiting."""

_TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
    "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


def to_html(text: str) -> str:
    """The text as safe HTML."""
    text = storable(text)
    if len(text) > LONGEST_MARKDOWN:
        return f'<pre class="plain">{html.escape(text)}</pre>'
    return nh3.clean(
        _MARKDOWN.render(text),
        tags=_TAGS,
        attributes={"a": {"href"}, "code": {"class"}, "ol": {"start"}},
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
