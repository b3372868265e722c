"""Comparisons from traffic: from each source, spread, thinned, once each, and never on held-out prompts."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from feedback.comparisons import Plan, make_comparisons
from feedback.privacy import Masker
from ratchet.db.engine import session_scope
from ratchet.db.roles import Role
from ratchet.ids import new_id
from ratchet.prompts import Split, hash_of_text, split
from tests.conftest import Database
from tests.support.feedback import HELDOUT_PROMPT, put, put_event, response, user

PLAN = Plan(per_day=50, wanted=2, strata=("policy", "language", "length"))
BLUE, BLACK = "The sky is blue.", "The sky is black."
QUESTIONS = [
    "Why is the sky blue at noon?",
    "How old is the moon?",
    "What do bees eat in winter?",
    "Name four rivers of France.",
    "Which metal melts in a hand?",
]
LIKE = [
    asked
    for number in range(8)
    for asked in [f"Explain why the sky is blue at noon, red at dusk and black at night; question {number}"]
    if split(hash_of_text(asked)) is Split.TRAIN
]


@pytest.fixture
def make(engine_of: Callable[[Role], Engine]) -> Callable[..., int]:
    engine = engine_of(Role.FEEDBACK)

    def run(plan: Plan = PLAN, now: datetime | None = None) -> int:
        with session_scope(engine) as session:
            return make_comparisons(session, plan, now=now or datetime.now(UTC))

    return run


def made(database: Database, columns: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return connection.execute(
            f"SELECT {columns} FROM feedback.comparison ORDER BY source, id"  # noqa: S608
        ).fetchall()


def put_shadow(database: Database, question: str, text: str = BLUE, **columns: Any) -> None:
    shown = new_id()
    put(
        database.owner_url,
        response(BLACK, identity=shown, messages=user(question), **columns),
        response(text, messages=user(question), pair_of=shown, policy="sea@bbbbbbbbbbbb", arm="shadow"),
    )


def test_each_source_gives_its_comparison(database: Database, make: Callable[..., int]) -> None:
    url = database.owner_url
    put_shadow(database, QUESTIONS[0])
    outputs = [{"index": place, "text": text} for place, text in enumerate((BLACK, BLUE, "Red."))]
    [several] = put(url, response(BLACK, messages=user(QUESTIONS[1]), outputs=outputs))
    first, second = put(
        url, response(BLACK, messages=user(QUESTIONS[2])), response(BLUE, messages=user(QUESTIONS[2]))
    )
    put_event(url, first, "regenerate", other_response_id=second)
    [edited] = put(url, response("I am sky.", messages=user(QUESTIONS[3])))
    edit = put_event(url, edited, "edit", text=BLUE)
    assert make() == 4
    assert make() == 0
    assert made(database, "source, a_policy, b_policy, wanted, names_policy, user_id, length") == [
        ("choices", "sky@aaaaaaaaaaaa", "sky@aaaaaaaaaaaa", 2, True, "ann", "short"),
        ("edit", "sky@aaaaaaaaaaaa", "human:edit", 2, True, "ann", "short"),
        ("regenerate", "sky@aaaaaaaaaaaa", "sky@aaaaaaaaaaaa", 2, True, "ann", "short"),
        ("shadow", "sky@aaaaaaaaaaaa", "sea@bbbbbbbbbbbb", 2, True, "ann", "short"),
    ]
    answers = made(database, "source, a_answer, b_answer")
    assert answers[0] == ("choices", str(several), f"{several}/1")
    assert answers[1] == ("edit", str(edited), f"edit:{edit}")
    assert answers[2] == ("regenerate", str(first), str(second))


@pytest.mark.parametrize(
    "columns",
    [
        {"messages": user(HELDOUT_PROMPT)},
        {"probe": "canary"},
        {"status": "error"},
        {"finish_reason": "content_filter"},
        {"text": BLUE},
        {"text": " "},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
)
def test_what_cannot_be_compared_is_not(
    database: Database, make: Callable[..., int], columns: dict[str, Any]
) -> None:
    shown = new_id()
    fields = {"text": BLACK, "messages": user(QUESTIONS[0]), **columns}
    put(
        database.owner_url,
        response(identity=shown, **fields),
        response(BLUE, messages=fields["messages"], pair_of=shown, policy="sea@bbbbbbbbbbbb"),
    )
    assert make() == 0


def test_the_days_share_is_spread_over_policies_and_languages(
    database: Database, make: Callable[..., int]
) -> None:
    for number in range(6):
        put_shadow(database, f"{QUESTIONS[0]} {' '.join([f'{number}x'] * 9)}", labels={"language": "en"})
    put_shadow(database, QUESTIONS[1], labels={"language": "de"})
    put_shadow(database, QUESTIONS[2], policy="old@cccccccccccc", labels={"language": "en"})
    assert make(Plan(per_day=3, wanted=1, strata=("policy", "language"))) == 3
    assert sorted(made(database, "language, a_policy")) == [
        ("de", "sky@aaaaaaaaaaaa"),
        ("en", "old@cccccccccccc"),
        ("en", "sky@aaaaaaaaaaaa"),
    ]
    assert make(Plan(per_day=3, wanted=1, strata=())) == 0
    assert make(Plan(per_day=4, wanted=1, strata=())) == 1


def test_near_duplicates_are_thinned(database: Database, make: Callable[..., int]) -> None:
    for asked in LIKE:
        put_shadow(database, asked)
    put_shadow(database, QUESTIONS[0])
    assert make() == 2


def test_two_workers_at_once_make_each_comparison_once(
    database: Database, engine_of: Callable[[Role], Engine]
) -> None:
    put_shadow(database, QUESTIONS[0])
    engine, now = engine_of(Role.FEEDBACK), datetime.now(UTC)
    with session_scope(engine) as one, session_scope(engine) as other:
        assert make_comparisons(one, PLAN, now=now) == 1
        assert make_comparisons(other, PLAN, now=now) == 0


def test_older_traffic_is_left_alone_and_answers_can_be_masked(
    database: Database, make: Callable[..., int]
) -> None:
    put_shadow(database, QUESTIONS[0], text="Write to ann@example.org.")
    assert make(now=datetime.now(UTC) + timedelta(days=2)) == 0
    assert make(Plan(per_day=1, wanted=1, strata=(), masker=Masker())) == 1
    assert made(database, "b_text") == [("Write to <EMAIL_ADDRESS>.",)]
