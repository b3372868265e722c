"""What the schema itself forbids: pools that mix, held-out rows that train, roles that read too much."""

import hashlib
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from ratchet.db.roles import Role
from ratchet.ids import new_id
from ratchet.prompts import hash_of_text, split
from tests.conftest import Database
from tests.support.feedback import HELDOUT_PROMPT, TRAIN_PROMPT, put, response, user

COMPARISON = """
    INSERT INTO feedback.comparison (id, pool, source, prompt, prompt_hash, history_hash, split, a_answer,
        a_text, a_policy, b_answer, b_text, b_policy, answered_at, wanted)
    VALUES (%(id)s, %(pool)s, %(source)s, %(prompt)s, %(hash)s, 'h', %(split)s, %(a)s,
        'one', 'p', %(b)s, 'two', 'q', now(), %(wanted)s)
"""


def comparison(prompt: str = TRAIN_PROMPT, **changed: Any) -> dict[str, Any]:
    identity = new_id()
    digest = hash_of_text(prompt)
    values: dict[str, Any] = {
        "id": identity, "pool": "preference", "source": "shadow", "prompt": Jsonb(user(prompt)),
        "hash": digest, "split": split(digest).value, "a": f"a{identity}", "b": f"b{identity}", "wanted": 1,
    }  # fmt: skip
    return {**values, **changed}


def rater(connection: psycopg.Connection[Any], name: str, pool: str) -> UUID:
    identity = new_id()
    connection.execute(
        "INSERT INTO feedback.rater (id, name, pool, daily_quota) VALUES (%s, %s, %s, 10)",
        (identity, name, pool),
    )
    return identity


def test_the_database_splits_prompts_as_the_code_does(database: Database) -> None:
    hashes = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(2_000)]
    hashes += ["f" * 64, "0" * 64, "8" + "0" * 63, "7" + "f" * 63]
    with psycopg.connect(database.owner_url) as connection:
        rows = connection.execute(
            "SELECT h, feedback.split_of(h) FROM unnest(%s::text[]) AS h", (hashes,)
        ).fetchall()
    assert dict(rows) == {name: split(name).value for name in hashes}


@pytest.mark.parametrize(
    "wrong",
    [
        comparison(HELDOUT_PROMPT),
        comparison(HELDOUT_PROMPT, split="train"),
        comparison(source="gold"),
        comparison(wanted=None),
        comparison(a="x", b="x"),
        comparison(pool="both"),
    ],
)
def test_a_comparison_that_must_not_be_is_refused(database: Database, wrong: dict[str, Any]) -> None:
    with (
        psycopg.connect(database.url(Role.FEEDBACK)) as connection,
        pytest.raises(psycopg.errors.CheckViolation),
    ):
        connection.execute(COMPARISON, wrong)


def test_rater_lease_and_comparison_share_one_pool_and_a_person_has_one(database: Database) -> None:
    lease = (
        "INSERT INTO feedback.lease (id, comparison_id, rater_id, pool, left_side, state, expires_at)"
        " VALUES (%s, %s, %s, %s, 'a', 'open', now())"
    )
    with psycopg.connect(database.owner_url, autocommit=True) as connection:
        judge = rater(connection, "Ann", "evaluation")
        item = comparison()
        connection.execute(COMPARISON, item)
        for pool in ("preference", "evaluation"):
            with pytest.raises(psycopg.errors.ForeignKeyViolation):
                connection.execute(lease, (new_id(), item["id"], judge, pool))
        with pytest.raises(psycopg.errors.UniqueViolation):
            rater(connection, "ANN", "preference")
        with pytest.raises(psycopg.errors.RestrictViolation, match="one pool for ever"):
            connection.execute("UPDATE feedback.rater SET pool = 'preference'")


def test_an_item_cannot_be_leased_beyond_its_quota(database: Database) -> None:
    with psycopg.connect(database.url(Role.FEEDBACK)) as connection:
        connection.execute(COMPARISON, comparison(wanted=2))
        connection.execute("UPDATE feedback.comparison SET leased = 1, voted = 1")
        with pytest.raises(psycopg.errors.CheckViolation, match="overlap_quota"):
            connection.execute("UPDATE feedback.comparison SET leased = 2")


def test_no_held_out_row_can_be_a_pair(database: Database) -> None:
    pair = (
        "INSERT INTO feedback.preference_pair (snapshot, position, split, prompt_hash, chosen_policy,"
        " rejected_policy, source, votes, weight, raters)"
        " VALUES ('s', %s, %s, %s, 'p', 'q', 'edit', 1, 1, '{}')"
    )
    held = hash_of_text(HELDOUT_PROMPT)
    with psycopg.connect(database.owner_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO feedback.dataset_snapshot (digest, kind, path, manifest)"
            " VALUES ('s', 'pairs', '', '{}')"
        )
        for named in ("heldout", "train"):
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(pair, (1, named, held))
        connection.execute(pair, (1, "train", hash_of_text(TRAIN_PROMPT)))
    with psycopg.connect(database.url(Role.TRAINER)) as connection:
        assert connection.execute("SELECT split, prompt_hash FROM feedback.preference_pair").fetchall() == [
            ("train", hash_of_text(TRAIN_PROMPT))
        ]


def test_the_evaluator_sees_its_own_pool_and_held_out_traffic_alone(database: Database) -> None:
    held, _ = put(
        database.owner_url, response(messages=user(HELDOUT_PROMPT)), response(messages=user(TRAIN_PROMPT))
    )
    judged = comparison(HELDOUT_PROMPT, pool="evaluation", source="candidate")
    with psycopg.connect(database.url(Role.FEEDBACK)) as connection:
        connection.execute(COMPARISON, comparison())
    with psycopg.connect(database.url(Role.EVALUATOR), autocommit=True) as connection:
        connection.execute(COMPARISON, judged)
        assert connection.execute("SELECT id FROM feedback.comparison").fetchall() == [(judged["id"],)]
        assert connection.execute("SELECT id FROM feedback.heldout_traffic").fetchall() == [(held,)]
        for wrong in (comparison(), comparison(pool="evaluation", source="shadow")):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                connection.execute(COMPARISON, wrong)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (Role.GATEWAY, "SELECT text FROM feedback.feedback_event"),
        (Role.GATEWAY, "UPDATE feedback.feedback_event SET kind = 'copy'"),
        (
            Role.GATEWAY,
            "INSERT INTO feedback.feedback_event (state) VALUES ('joined')",
        ),
        (Role.GATEWAY, "SELECT * FROM feedback.comparison"),
        (Role.TRAINER, "SELECT * FROM feedback.preference_pair"),
        (Role.TRAINER, "SELECT raters FROM feedback.preference_pair"),
        (Role.TRAINER, "SELECT user_id FROM feedback.demonstration"),
        (Role.TRAINER, "SELECT * FROM feedback.comparison"),
        (Role.TRAINER, "SELECT * FROM feedback.rating"),
        (Role.TRAINER, "SELECT * FROM feedback.feedback_event"),
        (Role.TRAINER, "SELECT * FROM feedback.imported_item"),
        (Role.TRAINER, "SELECT * FROM feedback.heldout_prompt"),
        (Role.TRAINER, "SELECT * FROM feedback.heldout_traffic"),
        (Role.EVALUATOR, "SELECT * FROM feedback.preference_pair"),
        (Role.EVALUATOR, "SELECT * FROM feedback.demonstration"),
        (Role.EVALUATOR, "SELECT * FROM feedback.dataset_snapshot"),
        (Role.EVALUATOR, "SELECT * FROM feedback.feedback_event"),
        (Role.EVALUATOR, "SELECT * FROM feedback.imported_item"),
        (Role.FEEDBACK, "INSERT INTO feedback.rater (id) VALUES (gen_random_uuid())"),
        (Role.FEEDBACK, "SELECT feedback.forget_user('ann', now())"),
        (Role.FEEDBACK, "DELETE FROM serving.response"),
        (Role.OPERATOR, "UPDATE feedback.rating SET choice = 'a'"),
        (Role.OPERATOR, "SELECT feedback.drop_months_before(now())"),
    ],
)
def test_a_role_is_refused_what_is_not_its_own(database: Database, role: Role, statement: str) -> None:
    with (
        psycopg.connect(database.url(role)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


def test_the_operator_reads_every_table(database: Database) -> None:
    with psycopg.connect(database.url(Role.OPERATOR)) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'feedback'"
        ).fetchall()
        for (table,) in tables:
            connection.execute(sql.SQL("SELECT FROM {}").format(sql.Identifier("feedback", table)))
        assert len(tables) > 15
