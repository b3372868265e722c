"""A turn of the loop on real rows: each subsystem takes its step as its own role, and no other's."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine

import evaluator.loop as selecting
import feedback.loop as freezing
import gateway.releases.loop as releasing
import trainer.rounds.loop as training
from evaluator.settings import EvaluatorSettings
from feedback import builds
from gateway.releases.audit import By
from gateway.releases.control import Control
from ratchet import loop
from ratchet.cli import main
from ratchet.db.engine import session_scope
from ratchet.db.models.training import TrainingRound
from ratchet.db.roles import Role
from ratchet.errors import NotFound, UsageError
from ratchet.home import Home
from ratchet.lineage import of_user
from ratchet.loop import State, Step, Wish
from ratchet.loop_story import turn
from ratchet.registry import PolicyVersion
from tests.conftest import Database
from tests.support.evaluation import put_engine, rows
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
from tests.support.releases import add_drill
from tests.support.scripted_policy import scripted_policies
from tests.support.scripted_round import scripted
from trainer.rounds.candidates import Publish
from trainer.rounds.conduct import Launch, carry_out

Publisher = Callable[[TrainingRound], Publish]

PLEASE = '{ kind = "mentions", phrase = "please", times = 1 }'
POLITE = """
name = "polite"
description = "Says please."
skill = "manners"
role = "in_distribution"
scorer = "instructions"
items = [{}]
""".format(", ".join(f'{{ prompt = "Question {place}?", constraints = [{PLEASE}] }}' for place in range(30)))
PLAN = """
name = "quick"
drill_max_age_days = 1
[[stages]]
name = "half"
kind = "canary"
share = 0.5
users = 5
[metrics.errors]
measure = "share"
worse = "higher"
margin = 0.3
harm = 0.3
users = 3
"""


class Stack:
    """What `ratchet up` runs, one look at a time."""

    def __init__(
        self, database: Database, home: Home, open_as: Callable[[Role], Engine], parent: PolicyVersion,
        publisher: Publisher,
    ) -> None:  # fmt: skip
        self.database, self.home, self.parent, self.publisher = database, home, parent, publisher
        self.feedback, self.trainer = open_as(Role.FEEDBACK), open_as(Role.TRAINER)
        self.evaluator, self.operator = open_as(Role.EVALUATOR), open_as(Role.OPERATOR)
        self.control = Control(self.operator)

    def ask(self, **changed: Any) -> UUID:
        """Asks for a turn of the parent."""
        wish: dict[str, Any] = {
            "model": self.parent.name, "policy": self.parent.ref, "method": "dpo",
            "pairs": {"policy": "current"}, "selection": {"suites": [POLITE]}, **changed,
        }  # fmt: skip
        with session_scope(self.operator) as session:
            return loop.begin(session, Wish(**wish), by="ann", reason="a test")

    def freeze(self) -> None:
        """One look of the feedback worker, the build it sends for, and the next look."""
        for _ in range(2):
            with session_scope(self.feedback) as session:
                freezing.take_steps(session)
            for (build,) in rows(
                self.database.owner_url, "SELECT id FROM feedback.snapshot_build WHERE state = 'pending'"
            ):
                builds.carry_out(
                    self.feedback, self.home.snapshots, build, now=datetime.now(UTC), masker=None
                )

    def train(self, launch: Launch) -> None:
        """One look of the trainer's worker, the round it asks for, and the next look."""
        training.take_steps(self.trainer, self.home)
        for (identity,) in rows(
            self.database.owner_url, "SELECT id FROM training.training_round WHERE state = 'asked'"
        ):
            carry_out(self.trainer, self.home, identity, worker="w", launch=launch, publisher=self.publisher)
        training.take_steps(self.trainer, self.home)

    def select(self, turn: UUID, polite: bool = True) -> None:
        """The process that the evaluator's worker starts."""
        known = [ref for (ref,) in rows(self.database.owner_url, "SELECT ref FROM registry.policy")]

        def says(ref: str) -> Callable[[str], str]:
            kind = polite and ref != self.parent.ref
            return lambda _: "Here you are, please." if kind else "Here."

        with scripted_policies({ref: says(ref) for ref in known}) as served:
            for ref in known:
                put_engine(self.database.owner_url, ref, served.url, served.fingerprint)
            selecting.carry_out(self.evaluator, self.home, turn, EvaluatorSettings(), lambda _: None)

    def release(self) -> None:
        """One look of the release process."""
        releasing.take_steps(self.operator, self.control)

    def story(self, identity: UUID) -> dict[str, Any]:
        """The turn as people see it."""
        with session_scope(self.operator) as session:
            return turn(session, session.get_one(loop.Loop, identity))

    def states(self, identity: UUID) -> list[str]:
        """Of its steps, in order."""
        return [step["state"] for step in self.story(identity)["steps"]]


@pytest.fixture
def stack(
    database: Database,
    home: Home,
    engine_of: Callable[[Role], Engine],
    parent: PolicyVersion,
    publisher: Publisher,
) -> Stack:
    serve_policy(database.owner_url, parent.name, parent.ref)
    for prompt in (TRAIN_PROMPT, VALIDATION_PROMPT):
        items = put_comparisons(
            database.owner_url, 2, prompt=prompt, a_policy=parent.ref, b_policy=parent.ref,
        )  # fmt: skip
        for item in items:
            put_votes(database.owner_url, item, "a", "a")
    for text, thumb in (("Blue.", 1), ("Black.", -1)):
        [said] = put(
            database.owner_url, response(text, messages=user(HELDOUT_PROMPT), policy=parent.ref, model="tiny")
        )
        put_event(database.owner_url, said, "thumb", value=thumb)
    return Stack(database, home, engine_of, parent, publisher)


GOOD = scripted(steps=4, checkpoints=[2, 4])


def test_a_turn_goes_from_votes_to_production(stack: Stack) -> None:
    identity = stack.ask(release=True, plan=PLAN)
    stack.release()
    assert stack.states(identity) == ["waiting"] * 4
    stack.freeze()
    stack.train(GOOD)
    stack.select(identity)
    shown = stack.story(identity)
    assert [step["state"] for step in shown["steps"]] == ["done", "done", "done", "waiting"]
    assert shown["steps"][1]["detail"] == {
        "step": 4, "total_steps": 4, "candidates": 2, "data": {"used": 8, "dropped": {"empty_answer": 2}}
    }  # fmt: skip
    ledger = shown["ledger"]
    assert (ledger["data"], ledger["in_the_snapshot"], ledger["held_out"], ledger["left_out"]) == (
        14, 12, 2, {}
    )  # fmt: skip
    assert (ledger["rows_trained_on"], ledger["rows_left_out"]) == (8, {"empty_answer": 2})
    assert shown["stale_share"] == 0.0
    assert (shown["gain"]["name"], shown["gain"]["estimate"]) == ("gain in polite", 1.0)
    chosen = shown["chosen"]
    assert chosen.startswith("tiny@")
    assert chosen != stack.parent.ref

    stack.release()
    shown = stack.story(identity)
    assert (shown["state"], "has never been tried" in shown["words"]) == ("failed", True)
    alarms = rows(stack.database.owner_url, "SELECT kind, subject FROM operations.alarm")
    assert ("loop_failed", str(identity)) in alarms
    add_drill(stack.operator, "tiny")
    with session_scope(stack.operator) as session:
        assert loop.retry(session, identity) is Step.RELEASE
    stack.release()
    stack.release()
    shown = stack.story(identity)
    assert (shown["state"], shown["steps"][3]["detail"]["state"]) == ("running", "preparing")
    released = stack.control.status("tiny")
    assert (released["policy"], released["actor"], released["overridden"]) == (
        chosen, f"loop {identity}", False
    )  # fmt: skip
    rows(
        stack.database.owner_url,
        "UPDATE releases.release SET state = 'running', stage_number = 0 RETURNING 1",
    )
    stack.control.promote("tiny", By("ann", "good"), to_end=True)
    stack.release()
    shown = stack.story(identity)
    assert (shown["state"], shown["words"]) == ("done", f"{chosen} is in production")


def test_a_turn_proposes_what_it_may_not_release_and_the_next_one_is_of_stale_pairs(stack: Stack) -> None:
    identity = stack.ask()
    with pytest.raises(UsageError, match="a turn of tiny is under way"):
        stack.ask()
    stack.freeze()
    stack.train(GOOD)
    stack.select(identity)
    stack.release()
    shown = stack.story(identity)
    assert (shown["state"], shown["steps"][3]["detail"]["proposed"]) == ("done", shown["chosen"])
    serve_policy(stack.database.owner_url, "tiny", shown["chosen"])
    later = stack.ask(policy=shown["chosen"], pairs={"policy": "lineage"})
    stack.freeze()
    assert stack.story(later)["stale_share"] == 1.0


def test_a_turn_that_chooses_nothing_ends_well_and_says_so(stack: Stack) -> None:
    identity = stack.ask(release=True, plan="small")
    stack.freeze()
    stack.train(GOOD)
    stack.select(identity, polite=False)
    stack.release()
    shown = stack.story(identity)
    assert [step["state"] for step in shown["steps"]] == ["done", "done", "done", "skipped"]
    assert (shown["state"], shown["chosen"], shown["gain"]) == ("done", None, None)
    assert shown["words"].startswith("nothing is proposed: ")


def test_a_round_that_left_no_candidate_leaves_nothing_to_choose(stack: Stack) -> None:
    identity = stack.ask()
    stack.freeze()
    stack.train(scripted(steps=2))
    stack.select(identity)
    stack.release()
    shown = stack.story(identity)
    assert [step["state"] for step in shown["steps"]] == ["done", "done", "skipped", "skipped"]


def test_a_failed_round_is_resumed_by_a_retry_and_nothing_is_asked_twice(stack: Stack) -> None:
    identity = stack.ask()
    stack.freeze()
    stack.train(scripted(steps=4, checkpoints=[2, 4], fail_at=3))
    shown = stack.story(identity)
    assert (shown["state"], "the loss of step 3 is NaN" in shown["words"]) == ("failed", True)
    stack.train(GOOD)
    assert stack.states(identity)[1] == "failed"
    with session_scope(stack.operator) as session:
        loop.retry(session, identity)
    stack.train(GOOD)
    assert stack.states(identity)[1] == "done"
    asked = "SELECT attempts FROM training.training_round"
    assert rows(stack.database.owner_url, asked) == [(1,)]
    assert len(rows(stack.database.owner_url, "SELECT 1 FROM feedback.snapshot_build")) == 1
    assert stack.story(identity)["steps"][1]["tries"] == 1


def test_a_snapshot_without_pairs_fails_its_turn_and_more_votes_mend_it(
    stack: Stack, database: Database
) -> None:
    rows(database.owner_url, "UPDATE feedback.rating SET undone_at = now() RETURNING 1")
    identity = stack.ask()
    stack.freeze()
    broken = stack.story(identity)
    assert (broken["state"], broken["words"]) == (
        "failed", "snapshot failed: no datum became a training row: of 2, left out: none"
    )  # fmt: skip
    stack.freeze()
    assert stack.states(identity)[0] == "failed"
    rows(database.owner_url, "UPDATE feedback.rating SET undone_at = NULL RETURNING 1")
    with session_scope(stack.operator) as session:
        loop.retry(session, identity)
    stack.freeze()
    stack.train(GOOD)
    assert stack.states(identity)[:2] == ["done", "done"]


def test_a_stopped_turn_stops_its_round_and_goes_on_where_it_was(stack: Stack) -> None:
    identity = stack.ask()
    stack.freeze()
    training.take_steps(stack.trainer, stack.home)
    with session_scope(stack.operator) as session:
        loop.stop(session, identity, who="eve", why="enough")
    stack.train(GOOD)
    assert rows(stack.database.owner_url, "SELECT state FROM training.training_round") == [("stopped",)]
    shown = stack.story(identity)
    assert (shown["state"], shown["words"]) == ("stopped", "stopped by eve: enough")
    with session_scope(stack.operator) as session, pytest.raises(UsageError, match="stopped already"):
        loop.stop(session, identity, who="eve", why="again")
    with session_scope(stack.operator) as session:
        assert loop.retry(session, identity) is Step.TRAIN
    stack.train(GOOD)
    assert stack.states(identity)[1] == "done"


@pytest.mark.parametrize(
    ("changed", "step", "said"),
    [
        ({"release": True, "plan": "nothing"}, Step.RELEASE, "no release plan is called 'nothing'"),
        ({"release": True, "plan": "name = 1\n"}, Step.RELEASE, "the release plan: "),
        ({"selection": {"suites": ["no such suite"]}}, Step.SELECT, "'no such suite' is no suite"),
        ({"selection": {"suites": [POLITE], "primary": "other"}}, Step.SELECT, "cannot rank"),
    ],
)
def test_what_a_late_step_would_refuse_is_refused_before_the_first_begins(
    stack: Stack, changed: dict[str, Any], step: Step, said: str
) -> None:
    identity = stack.ask(**changed)
    stack.release()
    with session_scope(stack.evaluator) as session:
        selecting.Dispatcher().take_steps(session)
    stack.freeze()
    shown = stack.story(identity)
    assert shown["state"] == "failed"
    assert shown["words"].startswith(f"{step} failed: ")
    assert said in shown["words"]
    assert stack.states(identity)[0] == "waiting"


@pytest.mark.parametrize("role", [Role.FEEDBACK, Role.TRAINER, Role.EVALUATOR])
def test_a_service_changes_its_own_step_alone(stack: Stack, role: Role) -> None:
    own = {Role.FEEDBACK: "snapshot", Role.TRAINER: "train", Role.EVALUATOR: "select"}
    identity = stack.ask()
    with psycopg.connect(stack.database.url(role)) as connection:
        changed = connection.execute(
            "UPDATE operations.loop_step SET state = 'running' RETURNING step"
        ).fetchall()
        assert changed == [(own[role],)]
        for statement in (
            "UPDATE operations.loop SET stopped_at = now()",
            "INSERT INTO operations.loop_step (loop_id, step, place) SELECT loop_id, 'train', 9 "
            "FROM operations.loop_step LIMIT 1",
            "UPDATE operations.loop_step SET place = 7",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement.encode())
    assert stack.states(identity).count("running") == 1


def test_the_gateway_sees_nothing_of_it(stack: Stack) -> None:
    stack.ask()
    with (
        psycopg.connect(stack.database.url(Role.GATEWAY)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT 1 FROM operations.loop")


def test_a_step_that_was_stopped_meanwhile_stays_so(stack: Stack) -> None:
    identity = stack.ask()
    with session_scope(stack.operator) as session:
        loop.stop(session, identity, who="eve", why="enough")
    with session_scope(stack.feedback) as session:
        assert not loop.note(session, identity, Step.SNAPSHOT, State.DONE, subject="d")
    assert stack.states(identity) == ["stopped"] * 4


def test_the_commands(
    stack: Stack, database: Database, home: Home, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("RATCHET_OPERATOR_DATABASE_URL", database.url(Role.OPERATOR))
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    monkeypatch.setenv("LOGNAME", "ann")
    plan, suite = tmp_path / "quick.toml", tmp_path / "polite.toml"
    plan.write_text(PLAN)
    suite.write_text(POLITE)

    def ratchet(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["ratchet", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, errors = capsys.readouterr()
        return int(end.value.code or 0), out, errors

    code, out, _ = ratchet(
        "round", "start", "--method", "dpo", "--set", "data.max_length=128", "--suite", str(suite),
        "--release", "--plan", str(plan), "--reason", "fresh pairs",
    )  # fmt: skip
    assert code == 0
    assert "dpo on tiny@" in out
    assert "snapshot" in out
    identity, stored = rows(database.owner_url, "SELECT id, wish FROM operations.loop")[0]
    assert stored["config"]["data"]["max_length"] == 128
    assert set(stored["config"]) & {"model", "snapshot", "method", "reference"} == set()
    assert (stored["plan"].strip(), stored["selection"]["suites"]) == (PLAN.strip(), [POLITE + "\n"])
    assert ratchet("round", "start")[0] == 2
    assert ratchet("round", "start", "--pairs", "old")[2] == (
        "ratchet: --pairs is current, lineage, all, not 'old'\n"
    )
    assert ratchet("loop", "stop", "last", "--reason", "enough")[0] == 0
    assert "stopped by ann: enough" in ratchet("loop", "show")[1]
    assert str(identity)[-12:] in ratchet("loop", "list")[1]
    assert "snapshot is waiting" in ratchet("loop", "retry", "last")[1]
    assert '"state": "waiting"' in ratchet("loop", "show", "last", "--json")[1]
    assert ratchet("loop", "show", "nobody")[0] == 2


def test_the_lineage_of_a_user_names_every_snapshot_and_policy_to_redo(
    stack: Stack, database: Database
) -> None:
    """One pair of bea's in a turn's snapshot; its candidates, and what grew from one of them later."""
    [item] = put_comparisons(
        database.owner_url, 1, prompt=TRAIN_PROMPT, a_policy=stack.parent.ref, b_policy=stack.parent.ref,
        user_id="bea",
    )  # fmt: skip
    put_votes(database.owner_url, item, "a", "a")
    identity = stack.ask()
    stack.freeze()
    stack.train(GOOD)
    made = [
        ref for (ref,) in rows(database.owner_url, "SELECT policy FROM training.checkpoint ORDER BY policy")
    ]
    put_policy(database.owner_url, "tiny@ffffffffffff", parent=made[0])
    put_policy(database.owner_url, "tiny@eeeeeeeeeeee", parent=stack.parent.ref)
    with session_scope(stack.operator) as session:
        found = of_user(session, "bea")
    assert [(held["rows_of_the_user"], held["policies_to_redo"]) for held in found["snapshots"]] == [
        (1, sorted([*made, "tiny@ffffffffffff"]))
    ]
    assert found["snapshots"][0]["digest"] == stack.story(identity)["steps"][0]["subject"]
    with session_scope(stack.operator) as session, pytest.raises(NotFound):
        of_user(session, "carl")
