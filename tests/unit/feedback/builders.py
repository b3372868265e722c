"""Evidence and rows by hand, for the tests of the rule and of data sets."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count, islice

from hypothesis import strategies as st

from feedback.evidence import Answer, Choice, Comparison, Pool, Signal, SignalKind, Thread, Vote
from feedback.rows import DemonstrationRow, PreferenceRow, Prompt, Turn, hash_of_prompt
from ratchet.prompts import Split, hash_of_text, history_hash, split

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    """Minutes after noon."""
    return NOON + timedelta(minutes=minutes)


@cache
def question(part: Split = Split.TRAIN, number: int = 0) -> str:
    """The number-th question that falls into a split."""
    texts = (f"prompt {place}" for place in count())
    fitting = (text for text in texts if split(hash_of_text(text)) is part)
    return next(islice(fitting, number, None))


def prompt(text: str | None = None) -> Prompt:
    """A prompt of one user message."""
    return (Turn("user", question() if text is None else text),)


def answer(
    id: str | None, text: str, *, asked: str | None = None, minute: float = 0, **fields: object
) -> Answer:
    """An answer of policy `demo@1`, asked by `ann`."""
    asked = question() if asked is None else asked
    values: dict[str, object] = {
        "id": id,
        "prompt": prompt(asked),
        "prompt_hash": hash_of_text(asked),
        "history_hash": history_hash([{"role": "user", "content": asked}]),
        "text": text,
        "policy": "demo@1",
        "decode": "d1",
        "created_at": at(minute),
        "user": "ann",
    }
    return Answer(**{**values, **fields})


def vote(
    rater: str, choice: Choice, *, minute: float = 1, pool: Pool = "preference", flagged: bool = False
) -> Vote:
    """A vote whose id tells rater and minute."""
    return Vote(f"v-{rater}-{minute}", rater, choice, at(minute), pool, flagged)


def comparison(
    id: str, *votes: Vote, a: Answer | None = None, b: Answer | None = None, gold: bool = False
) -> Comparison:
    """A comparison of "good" and "bad", which are answers `<id>-a` and `<id>-b`."""
    return Comparison(id, a or answer(f"{id}-a", "good"), b or answer(f"{id}-b", "bad"), votes, gold)


def signal(
    id: str,
    response: str,
    kind: SignalKind,
    *,
    minute: float = 5,
    value: float | None = None,
    text: str | None = None,
    user: str | None = "ann",
) -> Signal:
    """A signal of ann's."""
    return Signal(id, response, kind, at(minute), user, value, text)


def thread(id: str, answers: list[Answer], *signals: Signal) -> Thread:
    """A thread."""
    return Thread(id, tuple(answers), signals)


def pair_row(number: int = 0, *, asked: str | None = None, **fields: object) -> PreferenceRow:
    """A row between responses `c<number>` and `r<number>`."""
    turns = prompt(asked)
    values: dict[str, object] = {
        "prompt": turns,
        "chosen": f"chosen {number}",
        "rejected": f"rejected {number}",
        "chosen_response_id": f"c{number}",
        "rejected_response_id": f"r{number}",
        "chosen_policy": "demo@2",
        "rejected_policy": "demo@1",
        "chosen_decode": "d2",
        "rejected_decode": "d1",
        "source": "comparison",
        "votes": 3,
        "weight": 1.0,
        "created_at": NOON,
        "prompt_hash": hash_of_prompt(turns),
    }
    return PreferenceRow(**{**values, **fields})


def demonstration_row(number: int = 0, *, asked: str | None = None, **fields: object) -> DemonstrationRow:
    """A corrected text of response `e<number>`."""
    turns = prompt(asked)
    values: dict[str, object] = {
        "prompt": turns,
        "completion": f"written {number}",
        "response_id": f"e{number}",
        "policy": "human:edit",
        "decode": None,
        "source": "edit",
        "votes": 1,
        "weight": 1.0,
        "created_at": NOON,
        "prompt_hash": hash_of_prompt(turns),
    }
    return DemonstrationRow(**{**values, **fields})


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=30)
_solid = texts.filter(lambda text: text.strip() != "")
_ids = st.none() | st.uuids().map(str)
_turns = st.builds(Turn, st.sampled_from(["system", "user", "assistant"]), texts)
_moments = st.none() | st.datetimes(
    min_value=datetime(2020, 1, 1), max_value=datetime(2040, 1, 1), timezones=st.just(UTC)
)


def _rehashed(row: PreferenceRow | DemonstrationRow):
    return replace(row, prompt_hash=hash_of_prompt(row.prompt))


preference_rows: st.SearchStrategy[PreferenceRow] = (
    st.builds(
        PreferenceRow,
        prompt=st.lists(_turns, min_size=1, max_size=4).map(tuple),
        chosen=_solid,
        rejected=_solid,
        chosen_response_id=_ids,
        rejected_response_id=_ids,
        chosen_policy=st.sampled_from(["demo@1", "demo@2", "human:edit"]),
        rejected_policy=st.sampled_from(["demo@1", "import:hh"]),
        chosen_decode=st.none() | st.just("d1"),
        rejected_decode=st.none() | st.just("d2"),
        source=st.sampled_from(["comparison", "edit", "import"]),
        votes=st.integers(0, 9),
        weight=st.floats(0.01, 10),
        created_at=_moments,
        prompt_hash=st.just(""),
    )
    .map(_rehashed)
    .filter(lambda row: row.chosen.strip() != row.rejected.strip())
)

demonstration_rows: st.SearchStrategy[DemonstrationRow] = st.builds(
    DemonstrationRow,
    prompt=st.lists(_turns, min_size=1, max_size=4).map(tuple),
    completion=_solid,
    response_id=_ids,
    policy=st.sampled_from(["human:edit", "import:sft"]),
    decode=st.none(),
    source=st.sampled_from(["edit", "import"]),
    votes=st.integers(0, 9),
    weight=st.floats(0.01, 10),
    created_at=_moments,
    prompt_hash=st.just(""),
).map(_rehashed)
