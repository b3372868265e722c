"""A look at a release: which rows it counts for whom, and what becomes of what it saw."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, select

from gateway.releases import analysis, machine, repository
from gateway.releases.audit import By
from gateway.releases.control import Control
from gateway.releases.decision import Action
from gateway.releases.labeller import UNLABELLED, label_new
from gateway.releases.plan import ENDED, Source
from gateway.releases.plans import shipped_plan
from gateway.releases.probes import Trickle, load_probes
from gateway.releases.settings import ReleaseSettings
from gateway.releases.sources import Measured, Prices, read_measurements
from gateway.releases.walker import Walker
from gateway.releases.webhook import Webhook
from ratchet.db.engine import session_scope
from ratchet.db.models.releases import Release
from ratchet.db.roles import Role
from ratchet.ids import new_id
from tests.conftest import Database
from tests.support.feedback import put, put_event, response
from tests.support.gateway_process import Operator
from tests.support.measured import counted_one_by_one, random_rows
from tests.support.releases import BY, two_policies, wish

OLD, NEW = "m@000000000000", "m@000000000001"
PRICES = Prices(1.0, 4.0)
SOURCES = (*Source, "task:resolved")


@pytest.fixture
def engine(engine_of: Callable[[Role], Engine]) -> Engine:
    return engine_of(Role.OPERATOR)


@pytest.fixture
def control(engine: Engine) -> Control:
    two_policies(Operator(engine), "m")
    return Control(engine)


def begin(control: Control, engine: Engine, stages: int, /, **changed: Any) -> Release:
    """A release at a stage, by number from 1."""
    control.start(wish(NEW, **changed), BY)
    with session_scope(engine) as session:
        release = machine.open_release(session, "m")
        assert release is not None
        for number in range(stages):
            machine.enter(session, release, number, BY)
    return release


def answer(release: Release, policy: str, user: str, **columns: Any) -> dict[str, Any]:
    """A row of this stage."""
    return response(
        policy=policy, user_id=user, model="m", plan_version=release.stage_plan,
        **{"output_tokens": 10, "prompt_tokens": 5, "ttft_ms": 100.0, "duration_ms": 1000.0, **columns},
    )  # fmt: skip


def seen_of(engine: Engine, release: Release, *, shadow: bool = False) -> dict[str, Measured]:
    with session_scope(engine) as session:
        began = datetime.now(UTC) - timedelta(minutes=5)
        return read_measurements(session, release, began, PRICES, SOURCES, shadow=shadow)


def look(engine: Engine, release: Release) -> analysis.LookSeen:
    with session_scope(engine) as session:
        seen = analysis.look(session, release, PRICES, datetime.now(UTC))
        analysis.keep(session, release, seen)
        return seen


def test_a_canary_counts_users_and_leaves_out_what_is_none_of_theirs(
    control: Control, engine: Engine, database: Database
) -> None:
    release = begin(control, engine, 2)
    ann = answer(release, NEW, "ann", labels={"refusal": "full", "repetition": 0.0, "truncated": True})
    put(
        database.owner_url,
        ann,
        answer(release, NEW, "ann", status="error", error_code="engine_timeout", output_tokens=None),
        answer(release, NEW, "bob", verdicts={"pii": {"flagged": True}}),
        answer(release, OLD, "cid"),
        answer(release, NEW, "dot", pinned=True),
        answer(release, NEW, "dot", probe="warm"),
        answer(release, NEW, "bob", status="cancelled", error_code="client_closed_request", output_tokens=3),
        answer(release, NEW, "dot", status="rejected"),
        answer(release, NEW, "dot", pair_of=new_id(), arm="shadow"),
        answer(release, NEW, "dot") | {"plan_version": (release.stage_plan or 0) - 1},
        answer(release, OLD, "") | {"user_id": None, "session_id": "s1"},
        response(policy="other@000000000000", plan_version=release.stage_plan),
        answer(release, NEW, "x", probe="benign:1", pinned=True, labels={"refusal": "full"}),
        answer(release, OLD, "x", probe="benign:1", pinned=True, labels={"refusal": "partial"}),
        answer(release, NEW, "x", probe="harmful:2", pinned=True, status="error"),
    )
    put_event(database.owner_url, ann["id"], "thumb", value=-1)
    put_event(database.owner_url, ann["id"], "regenerate")
    put_event(database.owner_url, ann["id"], "metric", name="resolved", value=1.0)
    seen = seen_of(engine, release)
    new, old = seen[NEW], seen[OLD]
    assert (new.units, old.units) == (
        frozenset({"user:ann", "user:bob"}), frozenset({"user:cid", "session:s1"})
    )  # fmt: skip

    def values(measured: Measured, source: str) -> list[float]:
        return list(measured.samples[source].value)

    assert values(new, Source.ERRORS) == [0, 1, 0, 0]
    assert values(new, Source.TIMEOUTS) == [0, 1, 0, 0]
    assert values(new, Source.ABANDONED) == [0, 0, 0, 1]
    assert values(new, Source.LENGTH) == [10, 10]
    assert values(new, Source.FIRST_TOKEN) == [0.1, 0.1]
    assert values(new, Source.LATENCY) == [1.0, 1.0]
    assert values(new, Source.INTER_TOKEN) == [0.1, 0.1]
    assert values(new, Source.COST) == [45, 45]
    assert (values(new, Source.REFUSAL), values(new, Source.TRUNCATION)) == ([1], [1])
    assert values(new, Source.GUARDRAIL) == [1]
    assert values(new, Source.THUMBS) == [0]
    assert values(new, Source.REGENERATIONS) == [1, 0, 0, 0]
    assert values(new, "task:resolved") == [1]
    assert (values(new, Source.REFUSAL_BENIGN), values(old, Source.REFUSAL_BENIGN)) == ([1], [0])
    assert (values(new, Source.REFUSAL_HARMFUL), new.samples[Source.REFUSAL_HARMFUL].failed) == ([], 1)


def test_a_shadow_is_compared_with_the_answers_it_is_a_copy_of(
    control: Control, engine: Engine, database: Database
) -> None:
    release = begin(control, engine, 1)
    shown, alone = answer(release, OLD, "ann"), answer(release, OLD, "bob")
    copy = answer(release, NEW, "ann", pair_of=shown["id"], arm="shadow", output_tokens=30)
    put(database.owner_url, shown, alone, copy)
    seen = seen_of(engine, release, shadow=True)
    assert list(seen[NEW].samples[Source.LENGTH].value) == [30]
    assert list(seen[OLD].samples[Source.LENGTH].value) == [10]
    assert seen[NEW].units == seen[OLD].units == {"user:ann"}


def test_a_shadow_fails_no_more_than_production_where_both_fail_alike(
    control: Control, engine: Engine, database: Database
) -> None:
    """Of 400 users who ask once a fifth gets an error, which is not copied; of the copies a fifth fails."""
    release = begin(control, engine, 1)
    failed: dict[str, Any] = {"status": "error", "error_code": "engine_timeout"}
    originals = [answer(release, OLD, f"u{n}", **({} if n % 5 else failed)) for n in range(400)]
    copies = [
        answer(release, NEW, row["user_id"], pair_of=row["id"], arm="shadow", **({} if n % 5 else failed))
        for n, row in enumerate(row for row in originals if row["status"] == "ok")
    ]
    put(database.owner_url, *originals, *copies)
    seen = look(engine, release)
    assert seen.decision.action is Action.ADVANCE
    state = seen.states["errors"]
    assert (state.baseline.users, state.candidate.users, state.worsening) == (400, 320, pytest.approx(0.0))
    assert state.lower is not None
    assert state.upper is not None
    assert state.lower < 0 < state.upper


@pytest.mark.parametrize("shadow", [False, True])
def test_the_database_counts_as_reading_every_answer_does(
    control: Control, engine: Engine, database: Database, shadow: bool
) -> None:
    """Random answers, copies, feedback and probes, against a count of the same rows one by one."""
    release = begin(control, engine, 1 if shadow else 2)
    rows, events = random_rows(
        lambda policy, user, **columns: answer(release, policy, user, **columns), shadow
    )
    put(database.owner_url, *rows)
    for identity, kind, columns in events:
        put_event(database.owner_url, identity, kind, **columns)
    seen = seen_of(engine, release, shadow=shadow)
    for policy in (NEW, OLD):
        expected = counted_one_by_one(rows, events, policy, (OLD, NEW), PRICES, shadow=shadow)
        for source in SOURCES:
            sample = seen[policy].samples[source]
            own: dict[Any, list[float]] = {unit: [] for unit in sample.units}
            for place, value in zip(sample.user, sample.value, strict=True):
                own[sample.units[place]].append(value)
            found = [(unit, sorted(values)) for unit, values in own.items()], sample.failed
            assert (source, found) == (source, expected[source])
            assert expected[source][0] or (shadow, policy) == (True, NEW) or source not in ENDED
    with session_scope(engine) as session:
        began = datetime.now(UTC) - timedelta(minutes=5)
        few = read_measurements(session, release, began, PRICES, {Source.LENGTH}, shadow=shadow)
    assert few[NEW].samples.keys() == {Source.LENGTH}
    assert few[NEW].units == seen[NEW].units


def test_without_data_a_stage_holds_and_the_look_is_kept(control: Control, engine: Engine) -> None:
    release = begin(control, engine, 2)
    seen = look(engine, release)
    assert seen.decision.action is Action.HOLD
    told = control.status("m")["look"]
    assert (told["number"], told["decision"], told["exposure"]["users"]) == (1, "hold", 0)
    assert [(metric["metric"], metric["decision"]) for metric in told["metrics"]] == [("errors", "dead")]
    assert control.status("m")["metrics"] == [
        {
            "metric": "errors",
            "n": {"baseline": 0, "candidate": 0},
            "estimate": None,
            "interval": [-1.0, 1.0],
            "decision": "dead",
        }
    ]


def test_a_source_that_is_down_moves_nothing(control: Control, engine: Engine, database: Database) -> None:
    thumbs = {"measure": "share", "worse": "lower", "margin": 0.2, "harm": 0.1, "users": 2}
    release = begin(control, engine, 2, metrics={"thumbs": thumbs})
    put(database.owner_url, *(answer(release, NEW, f"n{n}") for n in range(150)))
    put(database.owner_url, *(answer(release, OLD, f"o{n}") for n in range(150)))
    with psycopg.connect(database.owner_url) as connection:
        connection.execute("REVOKE SELECT ON feedback.feedback_event FROM ratchet_operator")
    settings = ReleaseSettings(
        database_url="unused", release_gateway_url="http://127.0.0.1:9", release_probe_s=0
    )  # type: ignore[arg-type]
    trickle = Trickle("http://127.0.0.1:9", "key", load_probes(None))
    Walker(engine, settings, trickle, Webhook(lambda *_: None)).round()
    trickle.close()
    with psycopg.connect(database.owner_url) as connection:
        [(kind, detail)] = connection.execute("SELECT kind, detail FROM operations.alarm").fetchall()
    assert (kind, "permission denied" in detail["reason"]) == ("release_held", True)
    found = control.status("m")
    assert (found["state"], found["stage"], found["look"]) == ("running", "half", None)


def test_answers_that_all_fail_abort_whatever_the_stage_waits_for(
    control: Control, engine: Engine, database: Database
) -> None:
    release = begin(control, engine, 2)
    put(
        database.owner_url,
        *(answer(release, NEW, f"n{n}", status="error", error_code="engine_failed") for n in range(60)),
        *(answer(release, OLD, f"o{n}") for n in range(60)),
    )
    seen = look(engine, release)
    assert seen.decision.action is Action.ABORT
    assert "errors: worse by" in seen.decision.reason
    [point] = repository_series(engine, release)["errors"]
    assert (point["decision"], point["candidate"], point["baseline"]) == ("harm", 1.0, 0.0)


def test_a_candidate_that_hangs_until_its_users_leave_is_aborted(
    control: Control, engine: Engine, database: Database
) -> None:
    abandoned = shipped_plan("default").metrics["abandoned"].model_dump(mode="json")
    release = begin(control, engine, 2, metrics={"abandoned": abandoned})
    left = {"status": "cancelled", "error_code": "client_closed_request", "output_tokens": None}
    put(
        database.owner_url,
        *(answer(release, NEW, f"n{n}", **left) for n in range(60)),
        *(answer(release, OLD, f"o{n}") for n in range(60)),
    )
    seen = look(engine, release)
    assert (seen.decision.action, seen.exposure.users) == (Action.ABORT, 60)
    assert "abandoned: " in seen.decision.reason


def test_a_metric_whose_measurements_are_none_of_its_kind_holds(
    control: Control, engine: Engine, database: Database
) -> None:
    metrics = {"task:score": {"measure": "share", "worse": "lower", "margin": 0.2, "harm": 0.1, "users": 2}}
    release = begin(control, engine, 2, metrics=metrics)
    answers = [answer(release, policy, f"u{n}") for n in range(30) for policy in (NEW, OLD)]
    for identity in put(database.owner_url, *answers):
        put_event(database.owner_url, identity, "metric", name="score", value=7.0)
    seen = look(engine, release)
    assert seen.decision.action is Action.HOLD
    assert "task:score: of candidate 30 of 30 measurements failed" in seen.decision.reason
    [kept] = control.status("m")["look"]["metrics"]
    assert (kept["decision"], kept["n_candidate"], kept["estimate"]) == ("dead", 0, None)


def test_a_lopsided_share_of_users_holds_for_good(
    control: Control, engine: Engine, database: Database
) -> None:
    release = begin(control, engine, 2)
    put(database.owner_url, *(answer(release, NEW, f"n{n}") for n in range(200)))
    put(database.owner_url, *(answer(release, OLD, f"o{n}") for n in range(40)))
    assert "200 of 240 users are in the canary" in look(engine, release).decision.reason
    put(database.owner_url, *(answer(release, OLD, f"p{n}") for n in range(160)))
    again = look(engine, release)
    assert (again.decision.action, again.ratio is not None and again.ratio.mismatch) == (Action.HOLD, True)


def test_equal_arms_are_promoted_after_enough_users(
    control: Control, engine: Engine, database: Database
) -> None:
    release = begin(control, engine, 2)
    put(database.owner_url, *(answer(release, NEW, f"n{n}") for n in range(150)))
    put(database.owner_url, *(answer(release, OLD, f"o{n}") for n in range(150)))
    assert look(engine, release).decision.action is Action.DONE


def test_a_closed_release_names_gains_that_did_not_replicate(
    control: Control, engine: Engine, database: Database
) -> None:
    release = begin(control, engine, 2)
    put(database.owner_url, *(answer(release, NEW, f"n{n}") for n in range(150)))
    put(database.owner_url, *(answer(release, OLD, f"o{n}") for n in range(150)))
    with session_scope(engine) as session:
        [row] = session.scalars(select(Release))
        row.predicted = {"errors": {"estimate": -0.5, "low": -0.6, "high": -0.4},
                         "wins": {"estimate": -0.1, "low": -0.2, "high": 0.0}}  # fmt: skip
    look(engine, release)
    control.promote("m", BY)
    observed = control.close("m", By("ada", "a week"))["observed"]
    assert observed["effects"]["errors"]["estimate"] == 0.0
    first, second = sorted(observed["gaps"])
    assert "errors: the offline gain did not replicate: predicted -50.0%" in first
    assert second == "wins: predicted -10.0%, and traffic never measured it"


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_an_aborted_release_keeps_what_was_predicted_beside_what_was_seen(
    control: Control, engine: Engine, database: Database, stages: int
) -> None:
    release = begin(control, engine, stages)
    with session_scope(engine) as session:
        session.get_one(Release, release.id).predicted = {
            "errors": {"estimate": -0.5, "low": -0.6, "high": -0.4}
        }
    if stages == 2:
        put(database.owner_url, *(answer(release, NEW, f"n{n}") for n in range(150)))
        put(database.owner_url, *(answer(release, OLD, f"o{n}") for n in range(150)))
        look(engine, release)
    observed = control.abort("m", BY)["observed"]
    assert observed["effects"].keys() == ({"errors"} if stages == 2 else set())
    [gap] = observed["gaps"]
    assert ("did not replicate" if stages == 2 else "traffic never measured it") in gap


def test_a_hold_that_time_will_not_mend_is_told_at_once(
    control: Control, engine: Engine, database: Database
) -> None:
    stages = [{"name": "half", "kind": "canary", "share": 0.5, "users": 1000, "hours": 100}]
    release = begin(control, engine, 1, stages=stages, webhook="http://127.0.0.1:9/", look_seconds=0.001)
    with walking(engine) as (walker, told):
        put(database.owner_url, *(answer(release, NEW, f"n{n}") for n in range(9)))
        walker.round()
        assert told == []
        put(database.owner_url, *(answer(release, NEW, f"m{n}") for n in range(200)))
        put(database.owner_url, *(answer(release, OLD, f"o{n}") for n in range(40)))
        walker.round()
        walker.round()
    [(event, reason)] = told
    assert (event, "209 of 249 users are in the canary" in reason) == ("release_held", True)


def test_a_holdback_that_is_over_and_measured_nothing_is_told(control: Control, engine: Engine) -> None:
    holdback = {"share": 0.1, "days": 2}
    release = begin(control, engine, 3, holdback=holdback, webhook="http://127.0.0.1:9/", look_seconds=0.001)
    with walking(engine) as (walker, told):
        for hours, expected in ((47, []), (49, ["release_held"])):
            with session_scope(engine) as session:
                since = datetime.now(UTC) - timedelta(hours=hours)
                session.get_one(Release, release.id).stage_since = since
            walker.round()
            assert [event for event, _ in told] == expected
    assert "no metric is measured" in told[0][1]


class Heard(Webhook):
    """Keeps what it is told, in place of sending it."""

    def __init__(self, told: list[tuple[str, str]]) -> None:
        super().__init__(lambda *_: None)
        self._told = told

    def tell(self, url: str, document: dict[str, Any]) -> None:
        self._told.append((document["event"], document["reason"]))


@contextmanager
def walking(engine: Engine) -> Iterator[tuple[Walker, list[tuple[str, str]]]]:
    """A walker whose rounds the test calls, and the events and reasons that its webhook is told."""
    settings = ReleaseSettings(
        database_url="unused", release_gateway_url="http://127.0.0.1:9", release_probe_s=0
    )  # type: ignore[arg-type]
    trickle = Trickle("http://127.0.0.1:9", "key", load_probes(None))
    told: list[tuple[str, str]] = []
    yield Walker(engine, settings, trickle, Heard(told)), told
    trickle.close()


def test_a_page_of_a_long_release_shows_some_looks_and_the_detail_of_the_newest(
    control: Control, engine: Engine, database: Database
) -> None:
    """2,000 looks, every 7th back from the newest: 286; and the first of each stage."""
    release = begin(control, engine, 2)
    with psycopg.connect(database.owner_url) as connection:
        connection.execute(
            "INSERT INTO releases.look (id, release_id, stage, number, decision, reason, exposure)"
            " SELECT lpad(to_hex(n), 32, '0')::uuid, %s, CASE WHEN n <= 900 THEN 'shadow' ELSE 'half' END, n,"
            " 'hold', '', '{}' FROM generate_series(1, 2000) AS n",
            (release.id,),
        )
        connection.execute(
            "INSERT INTO releases.analysis (look_id, metric, n_baseline, n_candidate, decision, detail)"
            " SELECT id, metric, number, number, 'undecided', '{\"reason\": \"x\"}' FROM releases.look,"
            " unnest(ARRAY['errors', 'length']) AS metric WHERE metric = 'errors' OR stage = 'shadow'"
        )
    shown = repository_series(engine, release)
    numbers = [point["n_candidate"] for point in shown["errors"]]
    assert numbers == sorted({*range(2000, 0, -7), 1, 901})
    assert [point["n_candidate"] for point in shown["errors"] if "reason" in point] == [2000]
    assert [point["n_candidate"] for point in shown["length"] if "reason" in point] == [900]
    assert (shown["length"][0]["stage"], shown["length"][-1]["n_candidate"]) == ("shadow", 900)


def test_answers_are_labelled_once_and_only_by_the_operator(
    engine: Engine, database: Database, engine_of: Callable[[Role], Engine]
) -> None:
    first, second = response("Hello."), response(None)
    third = response("Later.", labels={"language": "de"})
    put(database.owner_url, first, second, third)

    def label(text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"language": "en", "text": text, "reason": finish_reason}

    assert label_new(engine, label) == 2
    assert label_new(engine, label) == 0
    with psycopg.connect(database.owner_url) as connection:
        rows = dict(connection.execute("SELECT id, labels FROM serving.response").fetchall())
    assert rows == {
        first["id"]: {"language": "en", "text": "Hello.", "reason": "stop"},
        second["id"]: UNLABELLED,
        third["id"]: {"language": "de"},
    }


def repository_series(engine: Engine, release: Release) -> dict[str, list[dict[str, Any]]]:
    with session_scope(engine) as session:
        return repository.series(session, release.id)
