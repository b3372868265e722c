"""What counts as proof, what as a fingerprint, what as a key."""

import math
from typing import Any
from uuid import UUID

import pytest

from gateway.errors import ApiError
from gateway.keys_cache import KnownKey, authenticate, may_generate
from gateway.proof import Refuted, largest_difference
from gateway.snapshot import Golden, parse_golden
from gateway.stamp import StampMismatch, check
from ratchet.keys import KeyRole, hash_key

GOLDEN = Golden((1, 7, 9), (-1.0, -2.0), "ab", None)


def scored(*logprobs: Any, tokens: tuple[int, ...] = (7, 9), made: int = 1) -> dict[str, Any]:
    steps = [None, *({str(token): {"logprob": value}} for token, value in zip(tokens, logprobs, strict=True))]
    return {"choices": [{"prompt_logprobs": steps}], "usage": {"completion_tokens": made}}


def test_the_largest_difference_counts() -> None:
    assert largest_difference(GOLDEN, scored(-1.25, -2.0)) == 0.25
    assert largest_difference(GOLDEN, scored(-1.0, -1.5)) == 0.5


def test_a_log_probability_that_is_no_number_differs_without_bound() -> None:
    assert largest_difference(GOLDEN, scored(-1.0, -math.inf)) == math.inf
    assert largest_difference(GOLDEN, scored(math.nan, -2.0)) == math.inf


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (scored(-1.0, -2.0, made=0), "generated no token"),
        (scored(-1.0, -2.0, tokens=(7, 8)), "no log-probability for token 9"),
        (scored(-1.0, tokens=(7,)), "scored 2 of 3 tokens"),
        (scored(-1.0, "x"), "no log-probability for token 9"),
        ({"choices": [], "usage": {"completion_tokens": 1}}, "scored 0 of 3 tokens"),
        ({}, "generated no token"),
    ],
)
def test_an_answer_that_does_not_score_the_prompt_proves_nothing(answer: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refuted, match=reason):
        largest_difference(GOLDEN, answer)


def test_golden_entries_as_their_rows_have_them() -> None:
    entry = {"kind": "text", "text": "ab", "token_ids": [1, 7, 9], "logprobs": [None, -1.0, -2.0]}
    assert parse_golden(entry) == GOLDEN


@pytest.mark.parametrize(
    "entry",
    [
        {},
        "x",
        {"text": "a", "token_ids": [1], "logprobs": [None]},
        {"text": "a", "token_ids": [1, 2], "logprobs": [None]},
        {"text": "a", "messages": [], "token_ids": [1, 2], "logprobs": [None, -1.0]},
        {"token_ids": [1, 2], "logprobs": [None, -1.0]},
    ],
)
def test_a_golden_entry_that_proves_nothing_is_refused(entry: Any) -> None:
    with pytest.raises(ValueError, match="golden entry"):
        parse_golden(entry)


def test_only_the_proved_fingerprint_passes() -> None:
    assert check("m@1", "boot-1", "boot-1") == "boot-1"
    for seen in ("boot-2", "", None, 7):
        with pytest.raises(StampMismatch) as mismatch:
            check("m@1", "boot-1", seen)
        assert mismatch.value.seen == (seen if isinstance(seen, str) else None)
    with pytest.raises(StampMismatch):
        check("m@1", None, None)


def test_keys_are_found_by_their_hash() -> None:
    key = KnownKey(UUID(int=1), KeyRole.CLIENT, None, None)
    known = {hash_key("rk-secret"): key}
    assert authenticate(known, "Bearer rk-secret") is key
    assert authenticate(known, "bearer rk-secret ") is key
    for header in (None, "", "Bearer", "Bearer  ", "Basic rk-secret", "rk-secret", "Bearer rk-other"):
        with pytest.raises(ApiError) as refused:
            authenticate(known, header)
        assert refused.value.status == 401


@pytest.mark.parametrize("role", KeyRole)
def test_raters_ask_for_no_answers(role: KeyRole) -> None:
    key = KnownKey(UUID(int=1), role, None, None)
    if role is KeyRole.RATER:
        with pytest.raises(ApiError) as refused:
            may_generate(key)
        assert refused.value.status == 403
    else:
        may_generate(key)


@pytest.mark.parametrize("limits", [{"rpm": 0}, {"rpm": "5"}, {"concurrency": True}, {"concurrency": 1.5}])
def test_a_limit_that_is_none_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        KnownKey.from_row(UUID(int=1), "client", limits)
