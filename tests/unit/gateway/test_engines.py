"""The pool: traffic only to engines that are proved, and to the idlest of those."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.engines import EnginePool, EngineState, PooledEngine, describe, retry_after
from gateway.snapshot import EngineSpec, Snapshot

POLICY = "m@1"
SPEC = EngineSpec(UUID(int=1), POLICY, True, "up", "http://e1", "boot-1", None)
OTHER = replace(SPEC, id=UUID(int=2), url="http://e2", fingerprint="boot-2")


def pool_of(*specs: EngineSpec) -> EnginePool:
    pool = EnginePool(on_change=lambda: None)
    pool.follow(Snapshot(engines=specs))
    return pool


def proved(pool: EnginePool, engine: PooledEngine) -> None:
    assert pool.prove(engine, pool.begin_proof(engine), engine.spec.fingerprint, 100)


def test_an_engine_takes_traffic_only_once_proved() -> None:
    pool = pool_of(SPEC)
    [engine] = pool.engines()
    assert engine.state is EngineState.UNPROVED
    assert pool.pick(POLICY) is None
    proved(pool, engine)
    assert pool.pick(POLICY) is engine
    assert (engine.proved_fingerprint, pool.room(POLICY)) == ("boot-1", 100)


def test_the_idlest_is_picked_and_who_was_tried_is_avoided() -> None:
    pool = pool_of(SPEC, OTHER)
    one, two = pool.engines()
    proved(pool, one)
    proved(pool, two)
    one.in_flight, two.in_flight = 3, 2
    assert pool.pick(POLICY) is two
    assert pool.pick(POLICY, {two.id}) is one
    assert pool.pick(POLICY, {one.id, two.id}) is None
    assert pool.pick("other@1") is None


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"fingerprint": "boot-9"}, EngineState.UNPROVED),
        ({"url": "http://e9"}, EngineState.UNPROVED),
        ({"state": "backoff"}, EngineState.ABSENT),
        ({"url": None}, EngineState.ABSENT),
        ({"last_error": "old news"}, EngineState.PROVED),
    ],
)
def test_a_row_that_says_restart_takes_the_proof_away(change: dict[str, str], state: EngineState) -> None:
    pool = pool_of(SPEC)
    [engine] = pool.engines()
    proved(pool, engine)
    pool.follow(Snapshot(engines=(replace(SPEC, **change),)))
    assert engine.state is state
    assert pool.is_served(POLICY) is (state is EngineState.PROVED)


def test_an_engine_by_url_needs_no_supervisor_to_be_up() -> None:
    pool = pool_of(replace(SPEC, managed=False, state="waiting"))
    assert pool.engines()[0].state is EngineState.UNPROVED


def test_the_proof_of_an_earlier_boot_counts_for_nothing() -> None:
    pool = pool_of(SPEC)
    [engine] = pool.engines()
    boot = pool.begin_proof(engine)
    pool.follow(Snapshot(engines=(replace(SPEC, fingerprint="boot-9"),)))
    assert pool.prove(engine, boot, "boot-1", None) is False
    assert engine.state is EngineState.UNPROVED


def test_a_mismatch_suspends_until_proved_again() -> None:
    pool = pool_of(SPEC)
    [engine] = pool.engines()
    proved(pool, engine)
    pool.suspend(engine, engine.boot, "another fingerprint")
    assert (engine.state, pool.pick(POLICY)) == (EngineState.SUSPENDED, None)
    assert pool.due(engine.due_at) == [engine]
    boot = pool.begin_proof(engine)
    pool.fail(engine, boot, "log-probabilities differ", refuted=True)
    assert engine.state is EngineState.SUSPENDED
    assert "log-probabilities differ" in pool.why_not(POLICY)
    proved(pool, engine)
    assert pool.pick(POLICY) is engine


def test_what_an_earlier_boot_did_is_not_held_against_this_one() -> None:
    pool = pool_of(SPEC)
    [engine] = pool.engines()
    proved(pool, engine)
    earlier = engine.boot
    pool.follow(Snapshot(engines=(replace(SPEC, fingerprint="boot-9"),)))
    proved(pool, engine)
    pool.doubt(engine, earlier, "connection lost")
    pool.suspend(engine, earlier, "another fingerprint")
    assert engine.state is EngineState.PROVED


def test_proofs_that_fail_are_repeated_after_a_growing_while() -> None:
    assert [retry_after(failures) for failures in (1, 2, 3, 7, 40)] == [0.5, 1.0, 2.0, 30.0, 30.0]


def test_an_engine_that_is_not_up_says_what_it_died_of() -> None:
    pool = pool_of(replace(SPEC, state="backoff", last_error="out of memory"))
    assert describe(pool.engines()[0]) == "backoff, last error: out of memory"
    assert pool.why_not("nobody@1") == "no engine is wanted for it"


def test_a_request_waits_for_a_proof_under_way_but_not_for_one_that_is_far_off() -> None:
    async def story() -> None:
        pool = pool_of(SPEC)
        [engine] = pool.engines()
        waiting = asyncio.create_task(pool.settled(POLICY))
        await asyncio.sleep(0)
        assert not waiting.done()
        proved(pool, engine)
        await waiting
        pool.doubt(engine, engine.boot, "connection lost")
        pool.fail(engine, pool.begin_proof(engine), "refused", refuted=False)
        await asyncio.wait_for(pool.settled(POLICY), 1)
        assert not pool.is_served(POLICY)

    asyncio.run(story())


class PoolMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order, traffic goes to engines of this boot that were proved in it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = EnginePool(on_change=lambda: None)
        self.spec = SPEC
        self.boots = 0
        self.begun: list[tuple[int, str]] = []
        self.pool.follow(Snapshot(engines=(SPEC,)))
        [self.engine] = self.pool.engines()

    @rule()
    def restarts(self) -> None:
        self.boots += 1
        self.spec = replace(self.spec, fingerprint=f"again-{self.boots}", state="up")
        self.pool.follow(Snapshot(engines=(self.spec,)))

    @rule()
    def dies(self) -> None:
        self.spec = replace(self.spec, state="backoff")
        self.pool.follow(Snapshot(engines=(self.spec,)))

    @precondition(lambda self: self.engine.state in (EngineState.UNPROVED, EngineState.SUSPENDED))
    @rule()
    def begins_a_proof(self) -> None:
        self.begun.append((self.pool.begin_proof(self.engine), self.spec.fingerprint or ""))

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "refuted", "silent"]))
    def ends_a_proof(self, data: st.DataObject, outcome: str) -> None:
        boot, fingerprint = self.begun.pop(data.draw(st.integers(0, len(self.begun) - 1)))
        if outcome == "ok":
            self.pool.prove(self.engine, boot, fingerprint, None)
        else:
            self.pool.fail(self.engine, boot, outcome, refuted=outcome == "refuted")

    @rule(age=st.integers(0, 2))
    def is_doubted(self, age: int) -> None:
        self.pool.doubt(self.engine, self.engine.boot - age, "connection lost")

    @rule(age=st.integers(0, 2))
    def shows_another_fingerprint(self, age: int) -> None:
        self.pool.suspend(self.engine, self.engine.boot - age, "mismatch")

    @invariant()
    def only_this_boots_fingerprint_takes_traffic(self) -> None:
        picked = self.pool.pick(POLICY)
        if picked is not None:
            assert self.spec.state == "up"
            assert picked.proved_fingerprint == self.spec.fingerprint


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
