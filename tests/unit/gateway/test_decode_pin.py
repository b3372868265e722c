"""The pin: whatever a client sends, the engine is told the policy's values, all of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decode_pin import header, pin
from gateway.errors import ApiError
from gateway.fields import PINNED, Kind
from ratchet.decode import DecodeConfig, SeedPolicy
from ratchet.plan import Enforcement

DECODE = DecodeConfig(
    temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, presence_penalty=0.1, frequency_penalty=0.2,
    repetition_penalty=1.1, max_tokens=100, stop=("END",), logit_bias={5: -100.0},
)  # fmt: skip
PINNED_VALUES = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": -100.0},
}

WISHES = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(-1, 100),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0, 2),
        "logit_bias": st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3),
        "max_tokens": st.integers(1, 10_000),
        "max_completion_tokens": st.integers(1, 10_000),
        "stop": st.lists(st.text(min_size=1, max_size=5), max_size=4),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "n": st.integers(1, 16),
    },
)


@given(st.sampled_from(Kind), WISHES, st.none() | st.integers(1, 5000))
def test_no_wish_moves_a_pinned_value(kind: Kind, wishes: dict[str, Any], room: int | None) -> None:
    done = pin(kind, wishes, DECODE, Enforcement.REPLACE, room)
    assert {name: done.parameters[name] for name in PINNED_VALUES} == PINNED_VALUES
    limit = done.parameters["max_completion_tokens" if kind is Kind.CHAT else "max_tokens"]
    asked = [wishes[name] for name in ("max_tokens", "max_completion_tokens") if name in wishes]
    assert limit == min([100, *asked, *([room] if room else [])])
    assert done.parameters["stop"][0] == "END"
    assert set(done.parameters["stop"]) == {"END", *wishes.get("stop", [])}
    assert set(done.parameters) <= {
        *PINNED_VALUES,
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "n",
    }


@given(st.sampled_from(Kind), WISHES)
def test_the_header_names_what_was_replaced_and_refusing_refuses_exactly_then(
    kind: Kind, wishes: dict[str, Any]
) -> None:
    done = pin(kind, wishes, DECODE, Enforcement.REPLACE, None)
    differing = {name for name in PINNED if name in wishes and wishes[name] != getattr(DECODE, name)}
    longer = {name for name in ("max_tokens", "max_completion_tokens") if wishes.get(name, 0) > 100}
    assert done.overridden == sorted(differing | longer)
    if done.overridden:
        with pytest.raises(ApiError) as refused:
            pin(kind, wishes, DECODE, Enforcement.REFUSE, None)
        assert (refused.value.status, refused.value.param) == (400, done.overridden[0])
    else:
        assert pin(kind, wishes, DECODE, Enforcement.REFUSE, None) == done


@pytest.mark.parametrize(
    ("policy", "pinned", "asked", "sent", "overridden"),
    [
        (SeedPolicy.CLIENT, None, 7, 7, []),
        (SeedPolicy.CLIENT, None, None, None, []),
        (SeedPolicy.FIXED, 3, 7, 3, ["seed"]),
        (SeedPolicy.FIXED, 3, 3, 3, []),
        (SeedPolicy.FIXED, 3, None, 3, []),
        (SeedPolicy.NONE, None, 7, None, ["seed"]),
        (SeedPolicy.NONE, None, None, None, []),
    ],
)
def test_seeds_follow_their_policy(
    policy: SeedPolicy, pinned: int | None, asked: int | None, sent: int | None, overridden: list[str]
) -> None:
    decode = DecodeConfig(seed_policy=policy, seed=pinned)
    wishes = {} if asked is None else {"seed": asked}
    done = pin(Kind.CHAT, wishes, decode, Enforcement.REPLACE, None)
    assert (done.parameters.get("seed"), done.overridden) == (sent, overridden)


def test_equal_values_in_other_words_are_no_difference() -> None:
    decode = DecodeConfig(temperature=1.0, top_k=0, logit_bias={5: 1.0})
    wishes = {"temperature": 1, "top_k": -1, "logit_bias": {5: 1.0}}
    assert pin(Kind.CHAT, wishes, decode, Enforcement.REPLACE, None).overridden == []


def test_the_clients_own_choices_pass() -> None:
    wishes = {"n": 2, "logprobs": True, "top_logprobs": 3, "response_format": {"type": "json_object"}}
    done = pin(Kind.CHAT, wishes, DecodeConfig(), Enforcement.REFUSE, None)
    assert {name: done.parameters[name] for name in wishes} == wishes


def test_the_header_says_digest_ignored_and_overridden() -> None:
    assert header("a" * 64, [], ()) == "a" * 12
    assert header("a" * 64, ["temperature", "top_p"], ("store",)) == (
        "aaaaaaaaaaaa; ignored=store; overridden=temperature,top_p"
    )
