"""What the schema of the evaluation lets nobody do, and what its functions tell."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from evaluator.provenance import Declared, Shared, origin_of_judge, origin_of_policy, shared
from ratchet.db.roles import Role
from ratchet.ids import new_id
from tests.conftest import Database
from tests.support.evaluation import (
    PRODUCTION,
    candidate,
    put_checkpoint,
    put_policy,
    put_reward_model,
    put_round,
    rows,
)
from tests.support.feedback import serve_policy


@pytest.fixture
def round_id(database: Database) -> UUID:
    put_policy(database.owner_url, PRODUCTION)
    put_policy(database.owner_url, candidate(1), parent=PRODUCTION)
    identity = put_round(database.owner_url)
    put_checkpoint(database.owner_url, identity, 4, 0.5, candidate(1), reward=1.25)
    return identity


def write_selection(url: str, round_id: UUID) -> UUID:
    run, selection = new_id(), new_id()
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO evaluation.eval_run (id, round_id, policies, baseline, config, config_digest)"
            " VALUES (%s, %s, '[]', %s, '{}', 'd')",
            (run, round_id, PRODUCTION),
        )
        connection.execute(
            "INSERT INTO evaluation.selection (id, round_id, run_id, candidates, chosen, reason, record,"
            " digest) VALUES (%s, %s, %s, '[]', %s, 'best', '{}', 'd')",
            (selection, round_id, run, candidate(1)),
        )
    return selection


def test_a_selection_never_changes_not_even_by_its_owner(database: Database, round_id: UUID) -> None:
    write_selection(database.url(Role.EVALUATOR), round_id)
    with psycopg.connect(database.owner_url, autocommit=True) as connection:
        for change in ("UPDATE evaluation.selection SET chosen = NULL", "DELETE FROM evaluation.selection"):
            with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
                connection.execute(change)  # type: ignore[call-overload]


def test_a_report_joins_rewards_only_once_the_selection_is_written(
    database: Database, round_id: UUID
) -> None:
    joined = "SELECT selection_id, step, policy, reward FROM evaluation.reward_of_selected"
    assert rows(database.url(Role.REPORT), joined) == []
    selection = write_selection(database.url(Role.EVALUATOR), round_id)
    assert rows(database.url(Role.REPORT), joined) == [(selection, 4, candidate(1), 1.25)]


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        *(
            (role, f"TABLE evaluation.{table}")
            for role in (Role.TRAINER, Role.GATEWAY, Role.FEEDBACK)
            for table in ("verdict", "outcome", "answer", "item", "selection", "judge", "eval_run")
        ),
        (Role.TRAINER, "SELECT * FROM feedback.heldout_prompt"),
        (Role.TRAINER, "SELECT * FROM feedback.heldout_traffic"),
        (
            Role.TRAINER,
            "SELECT evaluation.want_engine(gen_random_uuid(), gen_random_uuid(), 'sky@aaaaaaaaaaaa')",
        ),
        (Role.EVALUATOR, "SELECT * FROM evaluation.reward_of_selected"),
        (Role.EVALUATOR, "SELECT reward FROM training.checkpoint"),
        (Role.EVALUATOR, "SELECT detail FROM operations.alarm"),
        (Role.EVALUATOR, "SELECT * FROM reward.reward_model"),
        (Role.EVALUATOR, "UPDATE evaluation.selection SET reason = ''"),
        (Role.EVALUATOR, "DELETE FROM evaluation.verdict"),
        (Role.EVALUATOR, "UPDATE evaluation.calibration SET passed = true"),
        (Role.EVALUATOR, "UPDATE evaluation.eval_run SET config = '{}'"),
        (Role.EVALUATOR, "INSERT INTO registry.engine (id) VALUES (gen_random_uuid())"),
        (Role.EVALUATOR, "UPDATE registry.engine SET url = 'http://example.org'"),
        (Role.OPERATOR, "INSERT INTO evaluation.selection (id) VALUES (gen_random_uuid())"),
        (Role.OPERATOR, "SELECT evaluation.shared_with_reward_models('{}', '{}', '{}')"),
        (Role.REPORT, "SELECT reward FROM training.checkpoint"),
        (Role.REPORT, "INSERT INTO evaluation.selection (id) VALUES (gen_random_uuid())"),
    ],
)
def test_a_role_is_refused_what_is_not_its_own(database: Database, role: Role, statement: str) -> None:
    with (
        psycopg.connect(database.url(role)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)  # type: ignore[call-overload]


def test_the_operator_reads_every_table(database: Database) -> None:
    url = database.url(Role.OPERATOR)
    tables = rows(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'evaluation'")
    assert len(tables) == 9
    for (table,) in tables:
        rows(url, f"SELECT FROM evaluation.{table}")


def test_the_evaluator_learns_what_a_judge_shares_with_a_reward_model_and_no_more(
    database: Database, round_id: UUID
) -> None:
    put_policy(database.owner_url, "root@cccccccccccc", source="hf:Base-7B")
    put_policy(database.owner_url, "mid@dddddddddddd", parent="root@cccccccccccc", snapshot="old")
    taste = put_reward_model(database.owner_url, "mid@dddddddddddd", "pairs-1", labelling=["raters:Agency"])
    ask = "SELECT * FROM evaluation.shared_with_reward_models(%s, %s, %s)"
    url = database.url(Role.EVALUATOR)
    assert rows(url, ask, ["else"], ["else"], ["else"]) == []
    assert rows(url, ask, ["hf:base-7b", "w-dddddddddddd"], ["pairs-1", "old"], ["raters:agency"]) == [
        (taste, "labelling", "raters:Agency"),
        (taste, "lineage", "hf:Base-7B"),
        (taste, "lineage", "w-dddddddddddd"),
        (taste, "training data", "old"),
        (taste, "training data", "pairs-1"),
    ]
    assert rows(url, ask, [], [], ["raters:preference"]) == [(taste, "labelling", "raters:preference")]


@pytest.mark.parametrize(
    ("provenance", "kind", "name"),
    [
        *(({field: "Maker/Base-7B"}, "lineage", "maker/base-7b") for field in
          ("source", "repo", "repository", "url", "model", "package")),
        ({"lineage": ["hf:Root"]}, "lineage", "hf:root"),
        ({"training_data": ["Set-1"]}, "training data", "set-1"),
        ({"labelling": ["raters:Agency"]}, "labelling", "raters:agency"),
        ({"snapshot": "abcdef"}, "training data", "abcdef"),
    ],
)  # fmt: skip
def test_both_halves_of_the_border_read_the_same_of_a_provenance(
    database: Database, round_id: UUID, provenance: dict[str, Any], kind: str, name: str
) -> None:
    """A judge that shares a name with an ancestor is refused for a policy and for a reward model alike."""
    put_policy(database.owner_url, "root@cccccccccccc", **provenance)
    put_policy(database.owner_url, "mid@dddddddddddd", parent="root@cccccccccccc")
    taste = put_reward_model(database.owner_url, "mid@dddddddddddd", "pairs-1")
    kinds = ("lineage", "training data", "labelling")
    names = [[name] if each == kind else ["else"] for each in kinds]
    ask = "SELECT reward_model, kind, lower(name) FROM evaluation.shared_with_reward_models(%s, %s, %s)"
    assert rows(database.url(Role.EVALUATOR), ask, *names) == [(taste, kind, name)]
    ancestor = {"ref": "root@c", "name": "root", "digest": "d", "weights_digest": "w"}
    origin = origin_of_policy([{**ancestor, "provenance": provenance}])
    judge = origin_of_judge(
        Declared(lineage=names[0], training_data=names[1], labelling=names[2]), "another model"
    )
    assert shared(judge, origin, "mid") == [Shared("mid", kind, name)]


@pytest.fixture
def wanting(database: Database) -> Callable[[str, UUID, UUID], UUID]:
    """Wants an engine as the evaluator: policy, wish, id of a fresh row."""
    url = database.url(Role.EVALUATOR)
    return lambda policy, wish, fresh: rows(
        url, "SELECT evaluation.want_engine(%s, %s, %s)", wish, fresh, policy
    )[0][0]


def test_an_engine_put_up_to_be_evaluated_goes_with_the_last_who_holds_it(
    database: Database, round_id: UUID, wanting: Callable[[str, UUID, UUID], UUID]
) -> None:
    url, fresh, one, other = database.url(Role.EVALUATOR), new_id(), new_id(), new_id()
    state = "SELECT desired, state, managed, url FROM registry.engine WHERE id = %s"

    def dismiss(wish: UUID) -> bool:
        return rows(url, "SELECT evaluation.dismiss_engine(%s)", wish)[0][0]

    assert wanting(candidate(1), one, fresh) == fresh
    assert wanting(candidate(1), other, new_id()) == fresh
    assert rows(url, state, fresh) == [("up", "waiting", True, None)]
    assert not dismiss(one)
    assert rows(url, state, fresh) == [("up", "waiting", True, None)]
    assert dismiss(other)
    assert not dismiss(other)
    assert rows(url, state, fresh) == [("down", "waiting", True, None)]

    assert wanting(candidate(1), one, new_id()) == fresh
    serve_policy(database.owner_url, "sky", candidate(1))
    assert not dismiss(one)
    assert rows(url, "SELECT desired FROM registry.engine WHERE id = %s", fresh) == [("up",)]

    with psycopg.connect(database.owner_url) as connection:
        connection.execute(
            "INSERT INTO registry.engine (id, policy, managed, desired, state, url)"
            " VALUES (%s, %s, false, 'up', 'up', 'http://elsewhere')",
            (served := new_id(), PRODUCTION),
        )
    assert wanting(PRODUCTION, one, new_id()) == served
    assert not dismiss(one)


def test_an_engine_wanted_again_before_it_was_stopped_is_still_up(
    database: Database, round_id: UUID, wanting: Callable[[str, UUID, UUID], UUID]
) -> None:
    url, fresh, wish = database.url(Role.EVALUATOR), new_id(), new_id()
    wanting(candidate(1), wish, fresh)
    rows(database.owner_url, "UPDATE registry.engine SET state = 'up' RETURNING 1")
    rows(url, "SELECT evaluation.dismiss_engine(%s)", wish)
    assert wanting(candidate(1), wish, new_id()) == fresh
    assert rows(url, "SELECT desired, state FROM registry.engine WHERE id = %s", fresh) == [("up", "up")]


def test_the_engine_of_a_killed_run_is_let_go_and_that_of_a_living_one_is_not(
    database: Database, round_id: UUID, wanting: Callable[[str, UUID, UUID], UUID]
) -> None:
    url, wishes, engines = database.url(Role.EVALUATOR), (new_id(), new_id()), (new_id(), new_id())
    holders = [psycopg.connect(url, autocommit=True) for _ in wishes]
    for place, holder in enumerate(holders):
        holder.execute("SELECT pg_advisory_lock(evaluation.lock_of_wish(%s))", (wishes[place],))
        wanting((PRODUCTION, candidate(1))[place], wishes[place], engines[place])
    dead = "SELECT evaluation.dismiss_dead_wishes()"
    assert rows(url, dead) == [(0,)]
    (backend,) = holders[0].execute("SELECT pg_backend_pid()").fetchone() or (0,)
    rows(database.owner_url, "SELECT pg_terminate_backend(%s, 5000)", backend)
    assert rows(url, dead) == [(1,)]
    desired = "SELECT desired FROM registry.engine WHERE id = ANY (%s) ORDER BY id"
    assert rows(url, desired, list(engines)) == [("down",), ("up",)]
    for holder in holders:
        holder.close()


def test_a_calibration_passes_exactly_when_nothing_fell_short(database: Database) -> None:
    url = database.url(Role.EVALUATOR)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO evaluation.judge (ref, name, version, digest, artifact, endpoint, model, templates,"
            " parameters, provenance) VALUES (%s, 'j', %s, %s, 'a', 'main', 'm', '{}', '{}', '{}')",
            ("j@" + "e" * 12, "e" * 12, "e" * 64),
        )
        insert = (
            "INSERT INTO evaluation.calibration (id, judge, dimension, template, labels, labels_digest,"
            " pairs, figures, bar, shortcomings, passed)"
            " VALUES (%s, %s, 'h', 't', 'l', 'd', 3, '{}', '{}', %s, true)"
        )
        connection.execute(insert, (new_id(), "j@" + "e" * 12, Jsonb([])))
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(insert, (new_id(), "j@" + "e" * 12, Jsonb(["accuracy unknown"])))
