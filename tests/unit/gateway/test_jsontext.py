"""JSON at the borders: whatever Python's own reader and writer agree on, ours do too."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.jsontext import decode, encode, without_surrogates

TEXTS = st.text(st.characters(codec=None), max_size=10)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def values(integers: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """JSON values with these integers."""
    return st.recursive(
        st.none() | st.booleans() | integers | FLOATS | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=10,
    )


VALUES = values(st.integers())


@given(VALUES)
def test_what_is_written_can_be_read_by_anyone(value: Any) -> None:
    assert json.loads(encode(value)) == value


@given(values(st.integers(-(2**63), 2**63 - 1)))
def test_what_others_write_is_read(value: Any) -> None:
    assert decode(json.dumps(value).encode()) == value


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b"[1,]", b'{"a": "\\ud800", "b": NaN}', b"\xff\xfe"])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode(body)


@given(VALUES)
def test_without_surrogates_every_text_is_utf8_and_the_rest_is_as_before(value: Any) -> None:
    cleaned = without_surrogates(value)
    json.dumps(cleaned, ensure_ascii=False).encode("utf-8")
    if encode(value).isascii() and b"\\ud" not in encode(value):
        assert cleaned == value
