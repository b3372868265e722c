"""Evidence from the rows: what the rule for pairs reads, in its order, some thousand rows at a time.

All of it is read in one repeatable-read transaction through server-side cursors: comparisons with their
votes, then threads (every answer given at one point of one conversation, with every signal about them), then
imports.
First the ids of a thread's answers are read, narrow and sorted by the database; then the texts by id, in
batches, which touches only the partitions those ids lie in.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, CursorResult, Engine, Row, TextClause, text

from feedback.evidence import (
    Answer,
    Candidate,
    Comparison,
    ImportedDemonstration,
    ImportedPair,
    Signal,
    Thread,
    Vote,
)
from feedback.rows import HUMAN_EDIT, Kind, PreferenceRow, row_from, turns_of
from ratchet.ids import time_of

BATCH = 1_000
EDIT_PREFIX = "edit:"
BLOCKING = frozenset({"block", "change"})
"""Actions of a guardrail's verdict, `{"action": ...}`, after which an answer is not the policy's own."""

_VOTED = """
    SELECT item.*, votes.votes FROM feedback.comparison AS item
    JOIN LATERAL (
        SELECT jsonb_agg(
            jsonb_build_array(id, rater_id, choice, created_at, pool, flagged) ORDER BY id)
        FROM feedback.rating WHERE comparison_id = item.id AND undone_at IS NULL
    ) AS votes (votes) ON votes.votes IS NOT NULL
    WHERE item.id IN (SELECT comparison_id FROM feedback.rating WHERE undone_at IS NULL AND {window})
    ORDER BY item.id
"""
_THREADS = """
    WITH signalled AS MATERIALIZED (
        SELECT DISTINCT response_id FROM feedback.feedback_event
        WHERE state = 'joined' AND {window}
    ), points AS MATERIALIZED (
        SELECT DISTINCT conversation_id, history_hash
        FROM serving.response JOIN signalled ON signalled.response_id = id
        WHERE conversation_id IS NOT NULL AND history_hash IS NOT NULL
    ), answers AS (
        SELECT id,
               first_value(id) OVER (PARTITION BY conversation_id, history_hash ORDER BY id) AS thread
        FROM serving.response JOIN points USING (conversation_id, history_hash)
        WHERE pair_of IS NULL
        UNION ALL
        SELECT id, id FROM serving.response JOIN signalled ON signalled.response_id = id
        WHERE pair_of IS NOT NULL OR conversation_id IS NULL OR history_hash IS NULL
    )
    SELECT thread, id FROM answers ORDER BY thread, id
"""
_ORPHANS = """
    SELECT response_id AS thread, id, choice, kind, created_at, user_id, value, text
    FROM feedback.feedback_event WHERE state <> 'joined' AND {window} ORDER BY response_id, id
"""
_IN_WINDOW = "created_at >= :since"
_ANSWERS = text("""
    SELECT id, created_at, status, finish_reason, policy, decode, user_id, history_hash, prompt_hash,
           messages, outputs, output, verdicts, probe, pair_of
    FROM serving.response WHERE id = ANY(:ids) ORDER BY id
""")
_SIGNALS = text("""
    SELECT response_id, id, choice, kind, created_at, user_id, value, text
    FROM feedback.feedback_event
    WHERE response_id = ANY(:ids) AND state = 'joined' AND id >= :low AND id <= :high ORDER BY id
""")
_IMPORTS = text('SELECT id, "row" FROM feedback.imported_item WHERE kind = :kind ORDER BY id')


@dataclass(frozen=True, slots=True)
class Window:
    """Which evidence is read: what was voted or signalled at or after `since`; null reads all of it.

    A thread or comparison comes whole, with what was said before; the rule's own window decides on it.
    """

    since: datetime | None = None

    def clause(self) -> str:
        """The condition on an event or a vote."""
        return "true" if self.since is None else _IN_WINDOW

    def prepare(self, connection: Connection) -> None:
        """Has a windowed reading go by indexes alone: the planner does not know that what is said now mostly
        concerns answers given lately, and would scan the months before.
        """
        if self.since is not None:
            connection.execute(text("SET LOCAL enable_seqscan = off"))

    def values(self) -> dict[str, Any]:
        """The parameters of the condition."""
        return {} if self.since is None else {"since": self.since}


@contextmanager
def frozen_view(engine: Engine) -> Generator[Connection]:
    """A connection that sees one moment of the database, however long it reads."""
    with engine.connect() as plain:
        connection = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with connection.begin():
            yield connection


def evidence(connection: Connection, kind: Kind, window: Window) -> Iterator[Candidate]:
    """Every candidate for rows of a kind, in the order of `evidence.order_of`.

    Args:
        connection: See `frozen_view`; as the role `ratchet_feedback`.
        kind: Demonstrations need no comparisons.
        window: Which evidence.
    """
    window.prepare(connection)
    if kind is Kind.PAIRS:
        yield from comparisons(connection, window)
    yield from threads(connection, window)
    yield from _imports(connection, kind)


def comparisons(connection: Connection, window: Window) -> Iterator[Comparison]:
    """Every comparison somebody voted on, with its standing votes."""
    query = text(_VOTED.format(window=window.clause()))
    for row in _stream(connection, query, window.values()):
        yield Comparison(
            id=str(row.id),
            a=_compared(row, "a"),
            b=_compared(row, "b"),
            votes=tuple(_vote(vote) for vote in row.votes),
            gold=row.gold_choice is not None,
        )


def _compared(row: Row[Any], side: str) -> Answer:
    columns = row._mapping  # pyright: ignore[reportPrivateUsage]
    name, policy = str(columns[f"{side}_answer"]), str(columns[f"{side}_policy"])
    written = policy == HUMAN_EDIT
    return Answer(
        id=None if written else name,
        prompt=turns_of(row.prompt),
        prompt_hash=row.prompt_hash,
        history_hash=row.history_hash,
        text=columns[f"{side}_text"],
        policy=policy,
        decode=columns[f"{side}_decode"],
        created_at=row.answered_at if written else _made(name, row.answered_at),
        user=row.user_id,
    )


def _made(name: str, otherwise: datetime) -> datetime:
    try:
        return time_of(UUID(name.partition("/")[0]))
    except ValueError:
        return otherwise


def _vote(values: Sequence[Any]) -> Vote:
    name, rater, choice, created, pool, flagged = values
    return Vote(str(name), str(rater), choice, datetime.fromisoformat(created), pool, flagged)


def threads(connection: Connection, window: Window) -> Iterator[Thread]:
    """Every thread with a signal, and every signal whose response is not there, by id."""
    found = merge(_joined_threads(connection, window), _orphans(connection, window), key=lambda each: each.id)
    for _, same in groupby(found, key=lambda each: each.id):
        parts = list(same)
        if len(parts) == 1:
            yield parts[0]
        else:
            yield Thread(
                parts[0].id,
                tuple(answer for part in parts for answer in part.answers),
                tuple(signal for part in parts for signal in part.signals),
            )


def _joined_threads(connection: Connection, window: Window) -> Iterator[Thread]:
    query = text(_THREADS.format(window=window.clause()))
    members = ((row.thread, row.id) for row in _stream(connection, query, window.values()))
    grouped = (
        (thread, [name for _, name in group]) for thread, group in groupby(members, key=lambda row: row[0])
    )
    while batch := list(islice(grouped, BATCH)):
        ids = [name for _, names in batch for name in names]
        answers = {row.id: answers_of(row) for row in connection.execute(_ANSWERS, {"ids": ids})}
        signals = _signals_of(connection, ids)
        for thread, names in batch:
            yield Thread(
                str(thread),
                tuple(answer for name in names for answer in answers[name]),
                tuple(signal for name in names for signal in signals.get(name, ())),
            )


def _signals_of(connection: Connection, ids: list[UUID]) -> dict[UUID, list[Signal]]:
    span = {
        "ids": ids,
        "low": UUID(int=min(ids).int >> 80 << 80),
        "high": UUID(int=(max(ids).int >> 80 << 80) | (1 << 80) - 1),
    }
    found: dict[UUID, list[Signal]] = {}
    for row in connection.execute(_SIGNALS, span):
        found.setdefault(row.response_id, []).append(_signal(row, row.response_id))
    return found


def _orphans(connection: Connection, window: Window) -> Iterator[Thread]:
    query = text(_ORPHANS.format(window=window.clause()))
    rows = _stream(connection, query, window.values())
    for response_id, group in groupby(rows, key=lambda row: row.thread):
        yield Thread(str(response_id), (), tuple(_signal(row, response_id) for row in group))


def _signal(row: Row[Any], response_id: UUID) -> Signal:
    return Signal(
        id=str(row.id),
        response_id=answer_id(response_id, row.choice),
        kind=row.kind,
        created_at=row.created_at,
        user=row.user_id,
        value=row.value,
        text=row.text,
    )


def answer_id(response_id: UUID, choice: int) -> str:
    """An answer's id: the response's, or `<id>/<choice>` for its further choices."""
    return str(response_id) if choice == 0 else f"{response_id}/{choice}"


def answers_of(row: Row[Any]) -> tuple[Answer, ...]:
    """The answers of a response, one for each choice; one without text where it gave none.

    Args:
        row: With the columns of `serving.response` that `Answer` speaks of.
    """
    outputs: list[dict[str, Any]] = row.outputs or [{"index": 0, "text": row.output}]
    prompt = None if row.messages is None else turns_of(row.messages)
    return tuple(
        Answer(
            id=answer_id(row.id, int(output.get("index", place))),
            prompt=None if output.get("tool_calls") else prompt,
            prompt_hash=row.prompt_hash or "0" * 64,
            history_hash=row.history_hash or "",
            text=output.get("text") or "",
            policy=row.policy or "",
            decode=row.decode,
            created_at=row.created_at,
            user=row.user_id,
            errored=row.status != "ok",
            blocked=_is_blocked(row.finish_reason, row.verdicts),
            probe=row.probe is not None,
            shown=row.pair_of is None,
        )
        for place, output in enumerate(outputs)
    )


def _is_blocked(finish_reason: str | None, verdicts: dict[str, dict[str, Any]]) -> bool:
    actions = {verdict["action"] for verdict in verdicts.values() if "action" in verdict}
    return finish_reason == "content_filter" or bool(actions & BLOCKING)


def _imports(connection: Connection, kind: Kind) -> Iterator[ImportedPair | ImportedDemonstration]:
    for item in _stream(connection, _IMPORTS, {"kind": kind.value}):
        row = row_from(kind, item.row)
        if isinstance(row, PreferenceRow):
            yield ImportedPair(str(item.id), row)
        else:
            yield ImportedDemonstration(str(item.id), row)


def _stream(connection: Connection, query: TextClause, values: dict[str, Any]) -> Iterable[Row[Any]]:
    options = {"stream_results": True, "yield_per": BATCH}
    rows: CursorResult[Any] = connection.execute(query, values, execution_options=options)
    return rows


def plans(connection: Connection, since: datetime) -> list[dict[str, Any]]:
    """PostgreSQL's plans for the queries of a windowed reading, as `EXPLAIN (FORMAT JSON)` gives them."""
    window = Window(since)
    window.prepare(connection)
    return [
        connection.execute(
            text(f"EXPLAIN (FORMAT JSON) {query.format(window=window.clause())}"), window.values()
        ).scalar_one()[0]["Plan"]
        for query in (_VOTED, _THREADS, _ORPHANS)
    ]
