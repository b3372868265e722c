"""What a client may say: every kind's right and wrong values."""

import json
from typing import Any
from uuid import UUID

import pytest

from gateway.errors import ApiError
from gateway.feedback_events import Event, MetricRule, event_of, parse
from ratchet.ids import new_id, time_of

RESPONSE = new_id()
KEY = UUID(int=1)
NUMBER = MetricRule("number", 0, 10, None)
CATEGORY = MetricRule("category", None, None, ["mail", "chat"])
BOOLEAN = MetricRule("boolean", None, None, None)


def read(metric: MetricRule | None = None, header: str | None = None, **fields: Any) -> Event:
    document = json.dumps({"response_id": str(RESPONSE), **fields}).encode()
    return event_of(parse(document), key_id=KEY, header_key=header, metric=metric)


@pytest.mark.parametrize(
    ("fields", "metric", "value", "text"),
    [
        ({"kind": "thumb", "value": "up"}, None, 1.0, None),
        ({"kind": "thumb", "value": -1, "text": "no"}, None, -1.0, "no"),
        ({"kind": "rating", "value": 1}, None, 1.0, None),
        ({"kind": "rating", "value": "1"}, None, 1.0, None),
        ({"kind": "rating", "value": 4.5}, None, 4.5, None),
        ({"kind": "comment", "text": "Too\x00 long"}, None, None, "Too\ufffd long"),
        ({"kind": "edit", "text": "The sky is blue."}, None, None, "The sky is blue."),
        ({"kind": "copy"}, None, None, None),
        ({"kind": "escalate", "text": "angry"}, None, None, "angry"),
        ({"kind": "outcome", "value": "partial"}, None, 0.5, None),
        ({"kind": "metric", "name": "seconds", "value": 3}, NUMBER, 3.0, None),
        ({"kind": "metric", "name": "solved", "value": True}, BOOLEAN, 1.0, None),
        ({"kind": "metric", "name": "channel", "value": "mail"}, CATEGORY, None, "mail"),
    ],
)
def test_what_is_said_is_kept_as_it_is(
    fields: dict[str, Any], metric: MetricRule | None, value: float | None, text: str | None
):
    event = read(metric, **fields)
    assert (event.value, event.text, event.response_id) == (value, text, RESPONSE)


@pytest.mark.parametrize(
    ("fields", "metric", "field"),
    [
        ({"kind": "thumb", "value": True}, None, "value"),
        ({"kind": "thumb", "value": 0}, None, "value"),
        ({"kind": "thumb"}, None, "value"),
        ({"kind": "rating", "value": True}, None, "value"),
        ({"kind": "rating", "value": "good"}, None, "value"),
        ({"kind": "rating", "value": "nan"}, None, "value"),
        ({"kind": "rating", "value": 1001}, None, "value"),
        ({"kind": "edit", "text": "  "}, None, "text"),
        ({"kind": "comment", "text": "a", "value": 1}, None, "value"),
        ({"kind": "outcome", "value": "great"}, None, "value"),
        ({"kind": "copy", "value": 1}, None, "value"),
        ({"kind": "copy", "name": "x"}, None, "name"),
        ({"kind": "copy", "other_response_id": str(new_id())}, None, "other_response_id"),
        ({"kind": "retry", "other_response_id": str(RESPONSE)}, None, "other_response_id"),
        ({"kind": "shrug"}, None, "kind"),
        ({"kind": "copy", "mood": "good"}, None, "mood"),
        ({"kind": "metric", "value": 1}, None, "name"),
        ({"kind": "metric", "name": "unheard", "value": 1}, None, "name"),
        ({"kind": "metric", "name": "seconds", "value": 11}, NUMBER, "value"),
        ({"kind": "metric", "name": "seconds", "value": "3"}, NUMBER, "value"),
        ({"kind": "metric", "name": "solved", "value": 1}, BOOLEAN, "value"),
        ({"kind": "metric", "name": "channel", "value": "fax"}, CATEGORY, "value"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(
    fields: dict[str, Any], metric: MetricRule | None, field: str
):
    with pytest.raises(ApiError) as refused:
        read(metric, **fields)
    assert (refused.value.status, refused.value.param) == (400, field)


@pytest.mark.parametrize("wrong", ["", "7", str(UUID(int=7)), "ffffffff-ffff-7fff-bfff-ffffffffffff"])
def test_an_id_no_response_can_have_is_not_found(wrong: str):
    with pytest.raises(ApiError) as refused:
        read(kind="copy", response_id=wrong)
    assert refused.value.status == 404


def test_one_key_about_one_response_is_one_event_in_the_time_of_the_response():
    first = read(kind="copy", header="k")
    assert first.id == read(kind="copy", idempotency_key="k").id
    assert first.id != read(kind="copy", header="l").id
    assert first.id != read(kind="copy").id != read(kind="copy").id
    assert time_of(first.id) == time_of(RESPONSE)
    assert first.id.variant == RESPONSE.variant
    assert read(kind="copy", header="k", response_id=f"chatcmpl-{RESPONSE}").id == first.id
    with pytest.raises(ApiError, match="differ"):
        read(kind="copy", header="k", idempotency_key="l")


def test_a_body_that_is_no_json_is_refused():
    with pytest.raises(ApiError) as refused:
        parse(b"{")
    assert (refused.value.status, refused.value.param) == (400, None)
