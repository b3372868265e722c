"""The event parser: the same events however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sse import MAX_EVENT_BYTES, SseParser

LINE_END = st.sampled_from([b"\n", b"\r\n", b"\r"])
PAYLOAD = st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b""))
NOISE = st.sampled_from([b": keep-alive", b"event: message", b"id: 7", b"retry: 3000", b"unknown"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream of events with its line ends and noise, and the data it holds."""
    end = draw(LINE_END)
    stream = b""
    expected: list[bytes] = []
    for lines in draw(st.lists(st.lists(PAYLOAD, min_size=1, max_size=3), max_size=6)):
        for line in lines:
            noise = draw(NOISE) + end if draw(st.booleans()) else b""
            stream += noise + b"data: " + line + end
        stream += end
        expected.append(b"\n".join(lines))
    return stream, expected


@given(streams(), st.data())
def test_events_do_not_depend_on_where_the_bytes_are_cut(
    pair: tuple[bytes, list[bytes]], data: st.DataObject
) -> None:
    stream, expected = pair
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)) | {0, len(stream)})
    parser = SseParser()
    events = [event for low, high in pairwise(cuts) for event in parser.feed(stream[low:high])]
    assert events == expected


def test_the_stream_of_vllm() -> None:
    parser = SseParser()
    assert parser.feed(b'data: {"a": 1}\n') == []
    assert parser.feed(b'\n: keep-alive\n\ndata: {"b"') == [b'{"a": 1}']
    assert parser.feed(b": 2}\n\ndata: [DONE]\n\n") == [b'{"b": 2}', b"[DONE]"]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data:no space\n\n", [b"no space"]),
        (b"data:  two spaces\n\n", [b" two spaces"]),
        (b"data\n\n", [b""]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: cut off", []),
        (b"data: without its blank line\n", []),
        (b"\n\n\n", []),
        (b"datum: x\n\n", []),
    ],
)
def test_lines_mean_what_the_standard_says(stream: bytes, events: list[bytes]) -> None:
    assert SseParser().feed(stream) == events


def test_an_endless_event_is_refused() -> None:
    parser = SseParser()
    assert parser.feed(b"data: " + b"x" * (MAX_EVENT_BYTES - 6)) == []
    with pytest.raises(ValueError, match="an event of more than"):
        parser.feed(b"x")
