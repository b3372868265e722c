"""Each service logs in as itself, and PostgreSQL refuses what is not its own."""

from collections.abc import Callable
from datetime import datetime

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg import sql
from sqlalchemy import Engine

from migrations.run import migrate
from ratchet.db.base import Base
from ratchet.db.engine import libpq_url
from ratchet.db.models import evaluation, feedback, operations, registry, releases, serving, training
from ratchet.db.roles import SERVICE_ROLES, Role
from ratchet.ids import floor_of
from tests.conftest import Database

SCHEMAS = {
    module.SCHEMA for module in (evaluation, feedback, operations, registry, releases, serving, training)
} | {training.REWARD_SCHEMA}
PARTITIONS = ("response_", "feedback_event_")


@pytest.mark.parametrize("role", SERVICE_ROLES)
def test_every_role_logs_in_with_its_own_password(database: Database, role: Role) -> None:
    with psycopg.connect(database.url(role)) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (role.value,)


def test_a_wrong_password_is_refused(database: Database) -> None:
    good = libpq_url(database.url(Role.GATEWAY))
    wrong = good.replace(f"{Role.GATEWAY}:", f"{Role.GATEWAY}:x")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (Role.GATEWAY, "SELECT output FROM serving.response"),
        (Role.GATEWAY, "INSERT INTO serving.traffic_plan (model) VALUES ('m')"),
        (Role.GATEWAY, "DELETE FROM serving.response"),
        (Role.GATEWAY, "UPDATE serving.response SET labels = '{}'"),
        (Role.GATEWAY, "UPDATE releases.release SET state = 'promoted'"),
        (Role.GATEWAY, "SELECT * FROM releases.operator_session"),
        (Role.OPERATOR, "UPDATE serving.response SET output = ''"),
        (Role.TRAINER, "SELECT * FROM serving.api_key"),
        (Role.TRAINER, "SELECT * FROM serving.response"),
        (Role.EVALUATOR, "SELECT * FROM serving.response"),
        (Role.EVALUATOR, "SELECT * FROM serving.api_key"),
        (Role.EVALUATOR, "INSERT INTO registry.engine (id) VALUES (gen_random_uuid())"),
        (Role.FEEDBACK, "UPDATE serving.response SET output = ''"),
        (Role.FEEDBACK, "SELECT hash FROM serving.api_key"),
        (Role.OPERATOR, "UPDATE serving.api_key SET role = 'operator'"),
        (Role.REPORT, "INSERT INTO operations.alarm (kind) VALUES ('x')"),
        (Role.GATEWAY, "SELECT * FROM broker.kombu_message"),
        (Role.EVALUATOR, "CREATE TABLE public.mine (a int)"),
    ],
)
def test_a_role_is_refused_what_is_not_its_own(database: Database, role: Role, statement: str) -> None:
    with (
        psycopg.connect(database.url(role)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


@pytest.mark.parametrize("table", ["registry.policy", "registry.decode_config", "serving.traffic_plan"])
def test_immutable_tables_refuse_changes_even_from_their_owner(database: Database, table: str) -> None:
    with psycopg.connect(database.owner_url) as connection:
        connection.execute(
            "INSERT INTO registry.decode_config (digest, config) VALUES ('d', '{}');"
            "INSERT INTO registry.policy (ref, name, version, digest, weights_digest, tokenizer_digest,"
            " template_digest, decode_digest, artifact, architecture, golden, provenance)"
            " VALUES ('m@000000000000', 'm', '000000000000', '000000000000f', 'w', 't', 'c', 'd', 'a',"
            " '{}', '[]', '{}');"
            "INSERT INTO serving.traffic_plan (model, stage, arms, enforcement, salt, actor, reason)"
            " VALUES ('m', 'production', '[]', 'replace', 's', 'test', 'test')"
        )
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(*table.split("."))))


def test_the_models_are_what_the_migrations_made(engine_of: Callable[[Role], Engine]) -> None:
    def ours(name: str | None, kind: str, _: object) -> bool:
        return kind != "schema" or name in SCHEMAS

    with engine_of(Role.OWNER).connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": ours,
                "include_object": lambda thing, name, kind, reflected, _: (
                    not (kind == "table" and reflected and str(name).startswith(PARTITIONS))
                    and kind not in ("index", "unique_constraint")
                ),
            },
        )
        assert compare_metadata(context, Base.metadata) == []


def test_migrating_twice_changes_nothing(database: Database) -> None:
    migrate(database.owner_url)
    with psycopg.connect(database.owner_url) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)


def test_partitions_cover_the_months_ahead_and_begin_at_the_uuid_of_their_first_moment(
    database: Database,
) -> None:
    with psycopg.connect(database.url(Role.OPERATOR)) as connection:
        made = connection.execute("SELECT serving.ensure_response_partitions(14)").fetchone()
        assert made == (11,)
    with psycopg.connect(database.owner_url) as connection:
        for moment in ("1970-01-01T00:00:00Z", "2026-12-01T00:00:00Z"):
            bound = connection.execute("SELECT serving.uuid_floor(%s)", (moment,)).fetchone()
            assert bound == (floor_of(datetime.fromisoformat(moment)),)
