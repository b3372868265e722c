"""API keys: random, shown once, stored as a hash."""

import hashlib

from ratchet.keys import PREFIX, SHOWN, hash_key, mint


def test_a_key_is_stored_as_the_sha256_of_its_text():
    key = mint()
    assert key.hash == hash_key(key.text) == hashlib.sha256(key.text.encode()).digest()


def test_a_key_has_256_random_bits_of_which_42_are_shown():
    key = mint()
    assert key.text.startswith(PREFIX)
    assert len(key.text) == len(PREFIX) + 43
    assert key.prefix == key.text[:SHOWN]
    assert len(key.prefix) - len(PREFIX) == 7


def test_no_two_keys_are_alike():
    keys = [mint() for _ in range(500)]
    assert len({key.text for key in keys}) == len({key.hash for key in keys}) == 500


def test_any_text_a_client_may_send_has_a_hash():
    assert hash_key("\ud800") == hashlib.sha256(b"\xed\xa0\x80").digest()
