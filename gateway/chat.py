"""One request, top to bottom: key, admission, traffic, decode, engine, record, last byte."""

import asyncio
from typing import Any

from gateway import decode_pin
from gateway.ask import Ask, read_ask, read_document, short_text
from gateway.asking import PATHS, engine_request
from gateway.errors import ApiError, unavailable, unknown_model
from gateway.exchange import Exchange
from gateway.fields import Kind
from gateway.keys_cache import KnownKey, authenticate, may_generate
from gateway.parts import Parts
from gateway.relay import Relay
from gateway.shadow import Original
from gateway.snapshot import ServedPolicy
from gateway.stamp import StampMismatch
from gateway.traffic import Route, route
from gateway.trail import Trail
from gateway.whole import WholeAnswer
from ratchet.keys import KeyRole
from ratchet.logs import get_logger

STARTING_RETRY_S = 2.0

log = get_logger(__name__)


async def answer(parts: Parts, kind: Kind, exchange: Exchange) -> None:
    """Answers one request; if its key is known it leaves one record, whatever happens to it."""
    try:
        key = caller(parts, exchange.header("authorization"))
        may_generate(key)
    except ApiError as refused:
        parts.metrics.unauthenticated(kind, refused.status, refused.code)
        await exchange.fail(refused)
        return
    trail = Trail(parts.witnesses, kind, key, exchange.header("traceparent"))
    exchange.add_header("x-ratchet-response-id", str(trail.id))
    try:
        await _answer(parts, kind, exchange, key, trail)
    except ApiError as error:
        trail.end_badly(error, started=exchange.started)
        await exchange.fail(error)
    except asyncio.CancelledError:
        if exchange.client_gone:
            trail.end_cancelled()
            return
        stopping = unavailable("shutting_down", "this gateway is stopping", retry_after_s=STARTING_RETRY_S)
        trail.end_badly(stopping, started=exchange.started)
        await exchange.fail(stopping)
    except Exception as error:
        log.exception("a request failed by our own fault", id=str(trail.id))
        fault = ApiError(500, "internal_error", f"an internal error: {type(error).__name__}")
        trail.end_badly(fault, started=exchange.started)
        await exchange.fail(fault)
    finally:
        exchange.unwatch_client()


def caller(parts: Parts, authorization: str | None) -> KnownKey:
    """Whose key an `Authorization` header holds.

    Raises:
        ApiError: 401 for nobody's; 503 before the keys were ever read.
    """
    if not parts.follower.loaded:
        raise unavailable(
            "starting", "this gateway has not read its keys and plans yet", retry_after_s=STARTING_RETRY_S
        )
    return authenticate(parts.follower.snapshot.keys, authorization)


async def _answer(parts: Parts, kind: Kind, exchange: Exchange, key: KnownKey, trail: Trail) -> None:
    document = read_document(await exchange.body(parts.settings.max_body_bytes))
    exchange.watch_client()
    trail.received(document)
    ask = read_ask(kind, document)
    session = short_text("x-ratchet-session", exchange.header("x-ratchet-session"))
    trail.understood(ask, session)
    if key.role is KeyRole.SERVICE and (probe := exchange.header("x-ratchet-probe")) is not None:
        trail.probes(probe)

    async with parts.admission.place(key) as waited_s:
        trail.admitted(waited_s)
        where, policy = _choose(parts, ask, session, key)
        trail.routed(where, policy)
        exchange.add_header("x-ratchet-policy", policy.ref)
        exchange.add_header("x-ratchet-arm", where.arm.value)

        request = decode_pin.pin(
            kind, ask.fields.values, policy.decode, where.enforcement, parts.pool.room(policy.ref)
        )
        trail.pinned(request)
        exchange.add_header(
            "x-ratchet-decode",
            decode_pin.header(policy.decode_digest, request.overridden, ask.fields.ignored),
        )

        trail.open()
        parts.served_to.note(trail.id, key.id)
        with parts.in_flight.answering(ask.model, where):
            await _relay(parts, exchange, trail, ask, policy, engine_request(ask, policy.ref, request))
    parts.shadow.offer(Original(kind, ask, key, trail, where))


def _choose(parts: Parts, ask: Ask, session: str | None, key: KnownKey) -> tuple[Route, ServedPolicy]:
    snapshot = parts.follower.snapshot
    where = route(snapshot.plans, snapshot.served, ask.model, user=ask.user, session=session, key=str(key.id))
    policy = snapshot.policies.get(where.policy)
    if policy is None:
        raise unknown_model(where.policy)
    return where, policy


async def _relay(
    parts: Parts, exchange: Exchange, trail: Trail, ask: Ask, policy: ServedPolicy, body: dict[str, Any]
) -> None:
    limit_s = parts.settings.upstream_timeout_s
    whole = None if ask.stream else WholeAnswer(ask.kind, trail)
    try:
        async with (
            asyncio.timeout(limit_s),
            parts.upstream.ask(policy.ref, PATHS[ask.kind], body, whole) as engine_answer,
        ):
            trail.answered_by(engine_answer.engine)
            relay = Relay(ask, policy.ref, exchange, trail, engine_answer)
            try:
                await (relay.stream() if whole is None else relay.whole(whole))
            except StampMismatch as mismatch:
                parts.prover.mismatch(engine_answer, policy.ref, mismatch.seen)
                raise
    except TimeoutError as error:
        raise ApiError(504, "engine_timeout", f"the answer was not whole within {limit_s:g} s") from error
