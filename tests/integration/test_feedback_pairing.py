"""From rows to a snapshot, on a real PostgreSQL: what gets in, what does not and why, and that it adds up."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine

from feedback.pairing import BuildRequest, Built, build_snapshot, read_ledger
from feedback.privacy import Masker
from feedback.rows import Kind, PreferenceRow, Source
from ratchet.db.roles import Role
from ratchet.errors import NotFound, UsageError
from ratchet.ids import new_id
from ratchet.prompts import Split, hash_of_text
from tests.conftest import Database
from tests.support.feedback import (
    HELDOUT_PROMPT,
    TRAIN_PROMPT,
    VALIDATION_PROMPT,
    put,
    put_comparisons,
    put_event,
    put_policy,
    put_votes,
    response,
    serve_policy,
    user,
)

NOW = datetime.now(UTC)
BLUE, BLACK = "The sky is blue.", "The sky is black."


@pytest.fixture
def build(engine_of: Callable[[Role], Engine], tmp_path: Path) -> Callable[..., Built]:
    engine = engine_of(Role.FEEDBACK)

    def run(masker: Masker | None = None, **wish: Any) -> Built:
        return build_snapshot(engine, tmp_path / "snapshots", BuildRequest(**wish), now=NOW, masker=masker)

    return run


def pairs(built: Built, part: Split = Split.TRAIN) -> list[PreferenceRow]:
    return [row for row in built.snapshot.rows(part) if isinstance(row, PreferenceRow)]


def sides(built: Built) -> set[tuple[str, str, str]]:
    return {(row.source, row.chosen, row.rejected) for row in pairs(built)}


def adds_up(ledger: dict[str, Any]) -> bool:
    return all(
        line["data"] == line["accounted"] == line["used"] + line["held_out"] + sum(line["left_out"].values())
        for line in (ledger, *ledger["by_kind"].values())
    )


def test_votes_become_a_pair_with_everything_behind_it(
    database: Database, build: Callable[..., Built]
) -> None:
    a, b = sorted([new_id(), new_id()])
    [item] = put_comparisons(
        database.owner_url,
        1,
        a_answer=str(a),
        b_answer=str(b),
        a_text=BLUE,
        b_text=BLACK,
        a_decode="d1",
        wanted=9,
    )
    raters = put_votes(database.owner_url, item, "a", "b", "a")
    built = build(min_votes=2)
    [row] = pairs(built)
    assert (row.chosen, row.rejected, row.source, row.votes) == (BLUE, BLACK, "comparison", 3)
    assert (row.chosen_response_id, row.rejected_response_id) == (str(a), str(b))
    assert (row.chosen_policy, row.rejected_policy) == ("sky@aaaaaaaaaaaa", "sea@bbbbbbbbbbbb")
    assert (row.chosen_decode, row.rejected_decode) == ("d1", None)
    assert row.prompt[0].content == TRAIN_PROMPT
    assert built.ledger["by_kind"]["vote"] == {
        "data": 3,
        "used": 3,
        "held_out": 0,
        "left_out": {},
        "accounted": 3,
    }
    with psycopg.connect(database.url(Role.OPERATOR)) as connection:
        [kept] = connection.execute(
            "SELECT snapshot, position, split, agreement, raters, votes FROM feedback.preference_pair"
        ).fetchall()
    assert kept == (
        built.snapshot.manifest.digest,
        0,
        "train",
        2 / 3,
        sorted(str(each) for each in raters),
        3,
    )
    with psycopg.connect(database.url(Role.TRAINER)) as connection:
        assert connection.execute("SELECT digest, path FROM feedback.dataset_snapshot").fetchall() == [
            (built.snapshot.manifest.digest, str(built.snapshot.path))
        ]


def test_signals_of_one_point_of_a_conversation_become_pairs(
    database: Database, build: Callable[..., Built]
) -> None:
    first, second = put(database.owner_url, response(BLACK), response(BLUE))
    put_event(database.owner_url, first, "thumb", value=-1)
    put_event(database.owner_url, second, "thumb", value=1)
    [edited] = put(database.owner_url, response("It is green.", user_id="bob"))
    put_event(database.owner_url, edited, "edit", text="It is blue.", user_id="bob")
    later = datetime.now(UTC) + timedelta(seconds=5)
    left, kept = put(
        database.owner_url, response(BLACK, user_id="eve"), response(BLUE, user_id="eve", created_at=later)
    )
    put_event(database.owner_url, left, "regenerate", other_response_id=kept, user_id="eve")
    alone = put(database.owner_url, response("Alone.", user_id="zoe"))[0]
    put_event(database.owner_url, alone, "comment", text="Nice.", user_id="zoe")
    put_event(database.owner_url, new_id(), "copy", state="unknown")
    built = build()
    assert sides(built) == {
        ("thumb", BLUE, BLACK),
        ("edit", "It is blue.", "It is green."),
        ("regenerate", BLUE, BLACK),
    }
    assert adds_up(built.ledger)
    signals = built.ledger["by_kind"]["signal"]
    assert (signals["data"], signals["used"]) == (6, 4)
    assert signals["left_out"] == {"not_a_preference": 1, "unknown_response": 1}
    demonstrations = build(kind=Kind.DEMONSTRATIONS)
    assert demonstrations.snapshot.manifest.rows == 1
    assert adds_up(demonstrations.ledger)


def test_several_choices_of_one_response_are_told_apart(
    database: Database, build: Callable[..., Built]
) -> None:
    outputs = [{"index": place, "text": text} for place, text in enumerate((BLACK, BLUE))]
    [both] = put(database.owner_url, response(BLACK, outputs=outputs))
    put_event(database.owner_url, both, "copy", choice=1)
    [row] = pairs(build())
    assert (row.chosen_response_id, row.rejected_response_id) == (f"{both}/1", str(both))


def test_what_must_not_train_never_gets_in_whatever_the_filter(
    database: Database, build: Callable[..., Built]
) -> None:
    refused: dict[str, dict[str, Any]] = {
        "held_out": {"messages": user(HELDOUT_PROMPT)},
        "probe": {"probe": "canary"},
        "errored": {"status": "cancelled"},
        "blocked": {"verdicts": {"guard": {"action": "block"}}},
        "identical": {"text": BLACK},
        "empty": {"text": None},
    }
    for place, (reason, columns) in enumerate(refused.items()):
        person = f"person {place}"
        shown = {"text": BLUE, "user_id": person, **columns}
        if "messages" in columns:
            other = response(BLACK, user_id=person, messages=columns["messages"])
        else:
            other = response(BLACK, user_id=person, probe=columns.get("probe"))
        good, bad = put(database.owner_url, response(**shown), other)
        put_event(database.owner_url, good, "thumb", value=1, user_id=person)
        put_event(database.owner_url, bad, "thumb", value=-1, user_id=person)
        assert reason in read_reasons(build)
    for wish in (
        {},
        {"policy_match": "either"},
        {"sources": [Source.THUMB]},
        {"since": NOW - timedelta(days=1)},
    ):
        built = build(**wish)
        assert built.snapshot.manifest.rows == 0
        assert built.snapshot.manifest.dropped == dict.fromkeys(sorted(refused), 1)
        assert adds_up(built.ledger)
        assert built.ledger["held_out"] == 2


def read_reasons(build: Callable[..., Built]) -> set[str]:
    return set(build().snapshot.manifest.dropped)


def test_a_prompt_of_a_held_out_suite_never_trains(database: Database, build: Callable[..., Built]) -> None:
    [item] = put_comparisons(database.owner_url, 1, a_text=BLUE, b_text=BLACK, prompt=VALIDATION_PROMPT)
    put_votes(database.owner_url, item, "a")
    assert build().snapshot.manifest.by_split == {Split.TRAIN: 0, Split.VALIDATION: 1}
    with psycopg.connect(database.url(Role.EVALUATOR)) as connection:
        connection.execute(
            "INSERT INTO feedback.heldout_prompt (suite, prompt_hash, text) VALUES ('sky', %s, %s)",
            (hash_of_text(VALIDATION_PROMPT), VALIDATION_PROMPT),
        )
    built = build()
    assert (built.snapshot.manifest.rows, built.snapshot.manifest.dropped) == (0, {"held_out": 1})


def test_votes_of_judges_of_set_aside_raters_and_on_gold_do_not_train(
    database: Database, build: Callable[..., Built]
) -> None:
    [gold] = put_comparisons(database.owner_url, 1, gold_choice="a")
    [flagged] = put_comparisons(database.owner_url, 1)
    [judged] = put_comparisons(database.owner_url, 1, pool="evaluation", source="candidate")
    put_votes(database.owner_url, gold, "a")
    put_votes(database.owner_url, flagged, "a")
    with psycopg.connect(database.owner_url) as connection:
        connection.execute("UPDATE feedback.rating SET flagged = true WHERE comparison_id = %s", (flagged,))
        judge: UUID = new_id()
        connection.execute(
            "INSERT INTO feedback.rater (id, name, pool, daily_quota) VALUES (%s, 'judge', 'evaluation', 9)",
            (judge,),
        )
    put_votes(database.owner_url, judged, "a", raters=[judge])
    built = build()
    assert built.snapshot.manifest.dropped == {"evaluation_rater": 1, "flagged_rater": 1, "gold": 1}
    assert adds_up(built.ledger)
    assert built.snapshot.manifest.rows == 0


def test_the_same_filter_on_the_same_rows_gives_the_same_digest(
    database: Database, build: Callable[..., Built]
) -> None:
    for place in range(20):
        [item] = put_comparisons(database.owner_url, 1, prompt=f"prompt {place + 100}", wanted=1)
        put_votes(database.owner_url, item, "ab"[place % 2])
    one, other = build(), build()
    assert one.snapshot.manifest.digest == other.snapshot.manifest.digest
    one.snapshot.verify()
    assert one.ledger == other.ledger
    count = one.snapshot.manifest.rows
    with psycopg.connect(database.owner_url) as connection:
        assert connection.execute("SELECT count(*) FROM feedback.preference_pair").fetchone() == (count,)
        assert connection.execute("SELECT count(*) FROM feedback.dataset_snapshot").fetchone() == (1,)


def test_policies_by_what_is_served_by_name_and_by_lineage(
    database: Database, build: Callable[..., Built]
) -> None:
    refs = ["sky@aaaaaaaaaaaa", "sky@cccccccccccc", "sky@dddddddddddd"]
    for ref, parent in zip(refs, [None, *refs], strict=False):
        put_policy(database.owner_url, ref, parent)
    put_policy(database.owner_url, "sea@bbbbbbbbbbbb")
    for ref in refs:
        [item] = put_comparisons(database.owner_url, 1, a_policy=ref, b_policy=ref)
        put_votes(database.owner_url, item, "a")
    [item] = put_comparisons(database.owner_url, 1, a_policy=refs[2])
    put_votes(database.owner_url, item, "a")
    with pytest.raises(NotFound, match="no policy is served"):
        build(policy="current")
    assert build().staleness is None
    serve_policy(database.owner_url, "sky", refs[2])
    counts = {
        wish: build(policy=wish).snapshot.manifest.rows
        for wish in ("current", "lineage", "sky", "sea", refs[0])
    }
    assert counts == {"current": 1, "lineage": 3, "sky": 3, "sea": 0, refs[0]: 1}
    assert build(policy="lineage", max_distance=1).snapshot.manifest.rows == 2
    assert build(policy="current", policy_match="either").snapshot.manifest.rows == 2
    staleness = build().staleness
    assert staleness is not None
    assert (staleness["by_distance"], staleness["unrelated"]) == ({"0": 1, "1": 1, "2": 1}, 1)
    assert staleness["shares"]["2"] == 0.25
    with pytest.raises(NotFound, match="no policy is named"):
        build(policy="moon")
    with pytest.raises(UsageError, match="belongs to --policy lineage"):
        build(policy="sky", max_distance=1)
    serve_policy(database.owner_url, "ocean", "sea@bbbbbbbbbbbb")
    with pytest.raises(UsageError, match="several models are served"):
        build(policy="current")
    assert build(policy="current", model="sky").snapshot.manifest.rows == 1


def test_a_window_reads_what_was_said_in_it(database: Database, build: Callable[..., Built]) -> None:
    first, second = put(database.owner_url, response(BLACK), response(BLUE))
    put_event(database.owner_url, first, "thumb", value=-1, created_at=NOW - timedelta(days=20))
    put_event(database.owner_url, second, "thumb", value=1, created_at=NOW - timedelta(days=20))
    [item] = put_comparisons(database.owner_url, 1)
    put_votes(database.owner_url, item, "a")
    assert build(since=NOW - timedelta(days=14)).ledger["data"] == 2
    assert build(since=NOW - timedelta(days=30)).snapshot.manifest.rows == 2
    old = build(since=NOW - timedelta(days=30), until=NOW - timedelta(days=10))
    assert [row.source for row in pairs(old)] == ["thumb"]
    assert old.snapshot.manifest.dropped == {"outside_window": 1}


def test_masking_at_rest_leaves_the_prompt_and_its_split(
    database: Database, build: Callable[..., Built]
) -> None:
    [item] = put_comparisons(database.owner_url, 1, a_text="Ask ann@example.org.", b_text="No.")
    put_votes(database.owner_url, item, "a")
    [row] = pairs(build(masker=Masker()))
    assert (row.chosen, row.prompt[0].content) == ("Ask <EMAIL_ADDRESS>.", TRAIN_PROMPT)


def test_the_ledger_is_read_without_building(
    database: Database, engine_of: Callable[[Role], Engine], tmp_path: Path
) -> None:
    [item] = put_comparisons(database.owner_url, 1)
    put_votes(database.owner_url, item, "tie")
    ledger = read_ledger(engine_of(Role.FEEDBACK), BuildRequest())
    assert (ledger["data"], ledger["left_out"]) == (2, {"tie": 2})
    assert adds_up(ledger)
    assert list(tmp_path.iterdir()) == []
