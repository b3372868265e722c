"""Canonical JSON: equal values have equal text, and the digest is SHA-256 of it."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.canonical import canonical_json, digest_of, digest_of_file, digest_of_text, short

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_sorted_keys_no_white_space_ascii_only():
    value = {"b": [1, 2.5, None], "a": {"ü": "€ ", "A": True}}
    assert canonical_json(value) == '{"a":{"A":true,"\\u00fc":"\\u20ac "},"b":[1,2.5,null]}'


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        ({}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        ("abc", hashlib.sha256(b'"abc"').hexdigest()),
    ],
)
def test_known_digests(value: object, digest: str):
    assert digest_of(value) == digest


def test_digests_of_text_and_file_are_of_their_utf8_bytes(tmp_path: Path):
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "file").write_bytes(b"abc")
    assert digest_of_text("abc") == digest_of_file(tmp_path / "file") == abc
    assert short(abc) == "ba7816bf8f01"


def test_a_lone_surrogate_has_a_digest_of_its_own():
    assert digest_of_text("\ud800") == hashlib.sha256(b"\xed\xa0\x80").hexdigest()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")]])
def test_what_json_cannot_say_is_refused(value: object):
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


@given(st.dictionaries(st.text(), JSON))
def test_the_order_of_keys_does_not_count(value: dict[str, object]):
    assert digest_of(dict(reversed(value.items()))) == digest_of(value)


@given(JSON, JSON)
def test_different_values_have_different_text(one: object, other: object):
    assert (canonical_json(one) == canonical_json(other)) == (repr(_sorted(one)) == repr(_sorted(other)))


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
