"""What the schemas `training` and `reward` forbid, role by role, and what each role may do."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from ratchet.db.roles import Role
from ratchet.ids import new_id
from ratchet.keys import hash_key
from tests.conftest import Database
from tests.support.feedback import put_policy

POLICY = "sky@aaaaaaaaaaaa"
ASK = """
    INSERT INTO training.training_round (id, method, config, config_digest, snapshot, policy, reference,
        asked_by, reason)
    VALUES (%s, 'dpo', '{}', 'c', 's', %s, %s, 'ann', 'because')
"""
CHECKPOINT = """
    INSERT INTO training.checkpoint (id, round_id, step, kl_k1, kl_k3, reward, accuracy, digest, path)
    VALUES (%s, %s, 4, 0.5, 0.4, 1.25, 0.75, 'd', '/there')
"""
SPEAK = "INSERT INTO training.round_control (id, round_id, word, who, why) VALUES (%s, %s, %s, 'ann', 'why')"


@pytest.fixture
def asked(database: Database) -> UUID:
    """A round that the operator asked for, with a checkpoint and a metric of the trainer's."""
    identity = new_id()
    put_policy(database.owner_url, POLICY)
    with psycopg.connect(database.url(Role.OPERATOR)) as connection:
        connection.execute(ASK, (identity, POLICY, POLICY))
    with psycopg.connect(database.url(Role.TRAINER)) as connection:
        connection.execute(CHECKPOINT, (new_id(), identity))
        connection.execute("INSERT INTO training.metric VALUES (%s, 4, 'loss', 'NaN')", (identity,))
    return identity


def test_the_evaluator_reads_candidates_without_their_rewards_and_may_stop_a_round(
    database: Database, asked: UUID
) -> None:
    with psycopg.connect(database.url(Role.EVALUATOR)) as connection:
        assert connection.execute(
            "SELECT round_id, step, kl_k1, kl_k3, accuracy, digest, policy FROM training.checkpoint"
        ).fetchall() == [(asked, 4, 0.5, 0.4, 0.75, "d", None)]
        assert connection.execute("SELECT id, method, state FROM training.training_round").fetchall() == [
            (asked, "dpo", "asked")
        ]
        connection.execute(SPEAK, (new_id(), asked, "stop"))
        assert connection.execute("SELECT word, who FROM training.round_control").fetchall() == [
            ("stop", "ann")
        ]


def test_reports_read_no_reward_of_a_round_without_a_selection(database: Database, asked: UUID) -> None:
    with psycopg.connect(database.url(Role.REPORT), autocommit=True) as connection:
        assert connection.execute("SELECT round_id, step FROM training.checkpoint").fetchall() == [(asked, 4)]
        assert connection.execute("SELECT reward FROM evaluation.reward_of_selected").fetchall() == []
        for hidden in (
            "SELECT reward FROM training.checkpoint",
            "SELECT * FROM training.metric",
            "SELECT * FROM reward.reward_model",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(hidden)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (Role.EVALUATOR, "SELECT * FROM training.checkpoint"),
        (Role.EVALUATOR, "SELECT reward FROM training.checkpoint"),
        (Role.EVALUATOR, "SELECT 1 FROM training.checkpoint WHERE reward > 0"),
        (Role.EVALUATOR, "SELECT path FROM training.checkpoint"),
        (Role.EVALUATOR, "SELECT * FROM training.metric"),
        (Role.EVALUATOR, "SELECT summary FROM training.training_round"),
        (Role.EVALUATOR, "SELECT config FROM training.training_round"),
        (Role.EVALUATOR, "UPDATE training.training_round SET state = 'stopped'"),
        (Role.EVALUATOR, "UPDATE training.checkpoint SET accuracy = 1"),
        (Role.EVALUATOR, "SELECT * FROM reward.reward_model"),
        (Role.EVALUATOR, "SELECT * FROM reward.measurement"),
        (Role.EVALUATOR, "SELECT 'reward.reward_model'::regclass"),
        (Role.EVALUATOR, "SELECT serving.operator_of_key('\\x00')"),
        (Role.GATEWAY, "SELECT * FROM training.training_round"),
        (Role.GATEWAY, "SELECT * FROM reward.reward_model"),
        (Role.FEEDBACK, "SELECT * FROM training.checkpoint"),
        (Role.FEEDBACK, "SELECT * FROM reward.reward_model"),
        (Role.TRAINER, "DELETE FROM training.training_round"),
        (Role.TRAINER, "SELECT * FROM serving.api_key"),
        (Role.OPERATOR, "UPDATE training.checkpoint SET reward = 0"),
        (Role.OPERATOR, "INSERT INTO reward.reward_model (ref) VALUES ('r')"),
        (Role.OPERATOR, "UPDATE training.training_round SET config = '{}'"),
        (Role.REPORT, "UPDATE training.training_round SET state = 'done'"),
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
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_schema IN ('training', 'reward')"
        ).fetchall()
        for name in tables:
            connection.execute(sql.SQL("SELECT FROM {}").format(sql.Identifier(*name)))
        assert len(tables) == 6


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE training.training_round SET state = 'failed', ended_at = now()",
        "UPDATE training.training_round SET state = 'running'",
        "UPDATE training.training_round SET state = 'done', ended_at = now()",
        "UPDATE training.training_round SET state = 'lost'",
        "UPDATE training.checkpoint SET accuracy = 1.5",
        "UPDATE training.checkpoint SET step = -1",
    ],
)
def test_a_row_that_would_say_nonsense_is_refused(database: Database, asked: UUID, statement: str) -> None:
    with (
        psycopg.connect(database.url(Role.TRAINER)) as connection,
        pytest.raises(psycopg.errors.CheckViolation),
    ):
        connection.execute(statement)


def test_a_step_has_one_checkpoint_and_control_words_are_append_only(database: Database, asked: UUID) -> None:
    with psycopg.connect(database.url(Role.TRAINER), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(CHECKPOINT, (new_id(), asked))
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(SPEAK, (new_id(), asked, "pause"))
        connection.execute(SPEAK, (new_id(), asked, "stop"))
    with (
        psycopg.connect(database.owner_url) as connection,
        pytest.raises(psycopg.errors.RestrictViolation, match="append-only"),
    ):
        connection.execute("DELETE FROM training.round_control")


def test_the_trainer_learns_whether_a_key_is_an_operators_and_nothing_more(database: Database) -> None:
    def put(connection: psycopg.Connection[Any], key: str, role: str, revoked: str) -> None:
        connection.execute(
            "INSERT INTO serving.api_key (id, name, role, prefix, hash, revoked_at)"
            " VALUES (%s, %s, %s, 'rk-', %s, %s)",
            (new_id(), f"{role} {key}", role, hash_key(key), revoked or None),
        )

    with psycopg.connect(database.owner_url) as connection:
        put(connection, "one", "operator", "")
        put(connection, "two", "operator", "2026-01-01")
        put(connection, "three", "client", "")
    with psycopg.connect(database.url(Role.TRAINER)) as connection:
        answers = [
            connection.execute("SELECT serving.operator_of_key(%s)", (hash_key(key),)).fetchone()
            for key in ("one", "two", "three", "four")
        ]
    assert answers == [("operator one",), (None,), (None,), (None,)]
