"""Leases and votes under many requests at once: quotas exact, nobody twice, nothing left hanging."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine

from feedback.errors import LeaseLost, NothingToUndo, QuotaReached, SetAside, UnknownRater
from feedback.gold import GoldRule
from feedback.leases import Item, LeaseRule, expire_leases, lease_next
from feedback.voting import Shown, Vote, cast_vote, undo_last
from ratchet.db.engine import open_engine, session_scope
from ratchet.db.roles import Role
from ratchet.ids import new_id
from tests.conftest import Database
from tests.support.feedback import put_comparisons, put_raters

NOW = datetime.now(UTC)
NO_GOLD = GoldRule(share=0)
RULE = LeaseRule(timedelta(minutes=20), NO_GOLD, "secret")


def following(engine: Engine, rater: UUID, rule: LeaseRule = RULE, now: datetime = NOW) -> Item | None:
    with session_scope(engine) as session:
        return lease_next(session, rater, rule, now=now)


def some(engine: Engine, rater: UUID, rule: LeaseRule = RULE, now: datetime = NOW) -> Item:
    item = following(engine, rater, rule, now)
    assert item is not None
    return item


def vote(
    engine: Engine,
    rater: UUID,
    item: Item,
    shown: Shown = "left",
    now: datetime = NOW,
    gold: GoldRule = NO_GOLD,
) -> bool:
    with session_scope(engine) as session:
        return cast_vote(session, rater, Vote(item.lease, shown, 3.5, ("Clearer",)), gold, now=now)


def undo(engine: Engine, rater: UUID, now: datetime = NOW) -> UUID:
    with session_scope(engine) as session:
        return undo_last(session, rater, RULE, now=now)


def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


@pytest.fixture
def feedback(engine_of: Callable[[Role], Engine]) -> Engine:
    return engine_of(Role.FEEDBACK)


@pytest.mark.parametrize(("wanted", "expected"), [(1, 100), (3, 300)])
def test_a_thousand_requests_at_once_on_a_hundred_items_fill_every_quota_exactly(
    database: Database, wanted: int, expected: int
) -> None:
    put_comparisons(database.owner_url, 100, wanted=wanted)
    raters = put_raters(database.owner_url, 1_000)
    engine = open_engine(database.url(Role.FEEDBACK), application="test", pool_size=20)
    with ThreadPoolExecutor(40) as threads:
        items = list(threads.map(lambda rater: following(engine, rater), raters))
    engine.dispose()
    given = [item for item in items if item is not None]
    assert len(given) == expected
    assert set(Counter(item.comparison for item in given).values()) == {wanted}
    assert rows(database, "SELECT DISTINCT leased, voted FROM feedback.comparison") == [(wanted, 0)]
    assert {item.left_side for item in given} == {"a", "b"}


def test_two_raters_at_once_get_two_different_items(database: Database, feedback: Engine) -> None:
    put_comparisons(database.owner_url, 2)
    one, other = put_raters(database.owner_url, 2)
    with session_scope(feedback) as first, session_scope(feedback) as second:
        left, right = (
            lease_next(session, rater, RULE, now=NOW) for session, rater in ((first, one), (second, other))
        )
        assert left is not None
        assert right is not None
        assert left.comparison != right.comparison


def test_a_rater_keeps_an_item_until_it_is_voted_on_and_never_sees_it_again(
    database: Database, feedback: Engine
) -> None:
    put_comparisons(database.owner_url, 3)
    [rater] = put_raters(database.owner_url, 1)
    seen: list[UUID] = []
    for _ in range(3):
        item = some(feedback, rater)
        assert some(feedback, rater).lease == item.lease
        vote(feedback, rater, item)
        seen.append(item.comparison)
    assert following(feedback, rater) is None
    assert len(set(seen)) == 3


def test_one_raters_requests_at_once_give_one_item(database: Database) -> None:
    put_comparisons(database.owner_url, 20)
    [rater] = put_raters(database.owner_url, 1)
    engine = open_engine(database.url(Role.FEEDBACK), application="test", pool_size=10)
    with ThreadPoolExecutor(20) as threads:
        items = list(threads.map(lambda _: some(engine, rater), range(20)))
    engine.dispose()
    assert len({item.lease for item in items}) == 1


def test_the_quota_of_a_rater_ends_with_the_day(database: Database, feedback: Engine) -> None:
    put_comparisons(database.owner_url, 5)
    [rater] = put_raters(database.owner_url, 1, quota=2)
    noon = NOW.replace(hour=12)
    for _ in range(2):
        vote(feedback, rater, some(feedback, rater, now=noon), now=noon)
    with pytest.raises(QuotaReached):
        following(feedback, rater, now=noon)
    assert following(feedback, rater, now=noon + timedelta(days=1)) is not None


def test_an_expired_item_goes_to_others_and_a_late_vote_is_refused(
    database: Database, feedback: Engine
) -> None:
    put_comparisons(database.owner_url, 1, wanted=1)
    slow, next_one = put_raters(database.owner_url, 2)
    lost = some(feedback, slow)
    assert following(feedback, next_one) is None
    later = NOW + timedelta(minutes=21)
    taken = some(feedback, next_one, now=later)
    assert taken.comparison == lost.comparison
    with pytest.raises(LeaseLost):
        vote(feedback, slow, lost, now=later)
    assert following(feedback, slow, now=later) is None
    vote(feedback, next_one, taken, now=later)
    assert rows(database, "SELECT leased, voted FROM feedback.comparison") == [(0, 1)]
    assert rows(database, "SELECT count(*) FROM feedback.rating") == [(1,)]


def test_a_vote_after_time_counts_while_nobody_took_the_item(database: Database, feedback: Engine) -> None:
    put_comparisons(database.owner_url, 1)
    [rater] = put_raters(database.owner_url, 1)
    item = some(feedback, rater)
    assert vote(feedback, rater, item, now=NOW + timedelta(hours=1))
    with session_scope(feedback) as session:
        assert expire_leases(session, now=NOW + timedelta(hours=2)) == 0


def test_the_periodic_expiry_gives_everything_back_once(database: Database, feedback: Engine) -> None:
    put_comparisons(database.owner_url, 4)
    for rater in put_raters(database.owner_url, 8):
        some(feedback, rater)
    for expected in (8, 0):
        with session_scope(feedback) as session:
            assert expire_leases(session, now=NOW + timedelta(hours=1)) == expected
    assert rows(database, "SELECT DISTINCT leased FROM feedback.comparison") == [(0,)]


@pytest.mark.parametrize("shown", ["left", "right", "tie", "both_bad", "skip"])
def test_a_vote_is_turned_back_from_its_side(database: Database, feedback: Engine, shown: Shown) -> None:
    put_comparisons(database.owner_url, 6)
    [rater] = put_raters(database.owner_url, 1)
    expected: list[tuple[str, str]] = []
    for _ in range(6):
        item = some(feedback, rater)
        assert item.left.startswith("first" if item.left_side == "a" else "second")
        vote(feedback, rater, item, shown)
        other = "b" if item.left_side == "a" else "a"
        expected.append(({"left": item.left_side, "right": other}.get(shown, shown), item.left_side))
    assert rows(database, "SELECT choice, left_side FROM feedback.rating ORDER BY id") == expected
    assert rows(database, "SELECT DISTINCT reasons, seconds, flagged FROM feedback.rating") == [
        (["Clearer"], 3.5, False)
    ]
    voted = 0 if shown == "skip" else 1
    assert rows(database, "SELECT DISTINCT leased, voted FROM feedback.comparison") == [(0, voted)]


def test_a_vote_sent_twice_counts_once(database: Database, feedback: Engine) -> None:
    put_comparisons(database.owner_url, 1)
    [rater] = put_raters(database.owner_url, 1)
    item = some(feedback, rater)
    assert [vote(feedback, rater, item, shown) for shown in ("left", "right")] == [True, True]
    assert rows(database, "SELECT count(*) FROM feedback.rating") == [(1,)]
    assert rows(database, "SELECT leased, voted FROM feedback.comparison") == [(0, 1)]


def test_nobody_votes_on_anothers_item(database: Database, feedback: Engine) -> None:
    put_comparisons(database.owner_url, 1)
    one, other = put_raters(database.owner_url, 2)
    item = some(feedback, one)
    with pytest.raises(LeaseLost):
        vote(feedback, other, item)
    with pytest.raises(UnknownRater):
        following(feedback, new_id())


def test_the_last_vote_is_taken_back_once_and_the_page_comes_after(
    database: Database, feedback: Engine
) -> None:
    put_comparisons(database.owner_url, 3)
    [rater] = put_raters(database.owner_url, 1)
    first = some(feedback, rater)
    vote(feedback, rater, first, "left")
    second = some(feedback, rater)
    assert undo(feedback, rater) == first.lease
    assert rows(database, "SELECT sum(leased), sum(voted) FROM feedback.comparison") == [(2, 0)]
    with pytest.raises(NothingToUndo):
        undo(feedback, rater)
    again = some(feedback, rater)
    assert (again.lease, again.left_side) == (first.lease, first.left_side)
    vote(feedback, rater, again, "right")
    assert some(feedback, rater).lease == second.lease
    standing = "SELECT count(*), count(*) FILTER (WHERE undone_at IS NULL) FROM feedback.rating"
    assert rows(database, standing) == [(2, 1)]
    assert rows(database, "SELECT sum(leased), sum(voted) FROM feedback.comparison") == [(1, 1)]


def test_a_skip_cannot_be_taken_back_when_others_took_the_place(database: Database, feedback: Engine) -> None:
    put_comparisons(database.owner_url, 1, wanted=1)
    one, other = put_raters(database.owner_url, 2)
    vote(feedback, one, some(feedback, one), "skip")
    some(feedback, other)
    with pytest.raises(NothingToUndo, match="taken the place"):
        undo(feedback, one)
    with pytest.raises(NothingToUndo):
        undo(feedback, one, NOW + timedelta(hours=2))


def test_gold_is_mixed_in_by_its_share(database: Database, feedback: Engine) -> None:
    put_comparisons(database.owner_url, 60)
    gold = set(put_comparisons(database.owner_url, 30, gold_choice="a"))
    [rater] = put_raters(database.owner_url, 1)
    rule = LeaseRule(RULE.lifetime, GoldRule(share=0.25, min_seen=100), "secret")
    shown: list[bool] = []
    while (item := following(feedback, rater, rule)) is not None:
        shown.append(item.comparison in gold)
        vote(feedback, rater, item, "tie", gold=rule.gold)
    assert 60 <= len(shown) <= 90
    assert 8 <= sum(shown) <= 30
    assert sum(not each for each in shown) == 60


def test_a_rater_who_fails_gold_is_set_aside_flagged_and_replaced(
    database: Database, feedback: Engine
) -> None:
    put_comparisons(database.owner_url, 3)
    [rater, other] = put_raters(database.owner_url, 2)
    mine = [some(feedback, rater)]
    vote(feedback, rater, mine[0])
    put_comparisons(database.owner_url, 2, gold_choice="both_bad")
    strict = GoldRule(share=1, min_seen=2, min_right=0.9)
    rule = LeaseRule(RULE.lifetime, strict, "secret")
    assert vote(feedback, rater, some(feedback, rater, rule), "tie", gold=strict)
    assert not vote(feedback, rater, some(feedback, rater, rule), "both_bad", gold=strict)
    with pytest.raises(SetAside):
        following(feedback, rater)
    assert rows(database, "SELECT status, set_aside_reason FROM feedback.rater WHERE status <> 'active'") == [
        ("set_aside", "1 of 2 gold items right")
    ]
    assert rows(database, "SELECT bool_and(flagged), count(*) FROM feedback.rating") == [(True, 3)]
    assert rows(database, "SELECT sum(leased), sum(voted) FROM feedback.comparison") == [(0, 0)]
    assert rows(database, "SELECT kind FROM operations.alarm") == [("rater-set-aside",)]
    assert len({some(feedback, other).comparison}) == 1


def test_each_pool_sees_its_own_items(database: Database, feedback: Engine) -> None:
    [judged] = put_comparisons(
        database.owner_url, 1, pool="evaluation", source="candidate", prompt="prompt 3"
    )
    put_comparisons(database.owner_url, 1)
    [judge] = put_raters(database.owner_url, 1, pool="evaluation")
    item = some(feedback, judge)
    assert item.comparison == judged
    vote(feedback, judge, item)
    assert following(feedback, judge) is None
    assert rows(database, "SELECT pool FROM feedback.rating") == [("evaluation",)]
