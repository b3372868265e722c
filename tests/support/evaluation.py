"""Rows an evaluation test begins with: a round, its checkpoints, and policies with engines by URL."""

from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from ratchet.decode import DecodeConfig
from ratchet.ids import new_id

DECODE = DecodeConfig(temperature=0.0, max_tokens=64, stop=("<end>",))
PRODUCTION = "sky@aaaaaaaaaaaa"


def candidate(number: int) -> str:
    """The ref of a candidate by number."""
    return f"sky@{number:012x}"


def put_policy(url: str, ref: str, /, *, parent: str | None = None, engine: str | None = None,
               fingerprint: str | None = None, **provenance: Any) -> None:  # fmt: skip
    """Registers a policy; with `engine`, wants one that is reached by this URL."""
    name, _, version = ref.partition("@")
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO registry.decode_config (digest, config) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (DECODE.digest, Jsonb(DECODE.content())),
        )
        connection.execute(
            "INSERT INTO registry.policy (ref, name, version, digest, weights_digest, tokenizer_digest,"
            " template_digest, decode_digest, artifact, parent, architecture, golden, provenance)"
            " VALUES (%s, %s, %s, %s, %s, 't', 'c', %s, 'a', %s, '{}', '[]', %s)",
            (
                ref,
                name,
                version,
                version + "0" * 52,
                f"w-{version}",
                DECODE.digest,
                parent,
                Jsonb(provenance),
            ),
        )
    if engine is not None:
        put_engine(url, ref, engine, fingerprint)


def put_engine(url: str, policy: str, address: str, fingerprint: str | None = None) -> None:
    """Wants an engine that is reached by this address, and nobody's to start."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO registry.engine (id, policy, managed, desired, state, url, fingerprint)"
            " VALUES (%s, %s, false, 'up', 'up', %s, %s)",
            (new_id(), policy, address, fingerprint),
        )


def put_round(url: str, *, policy: str = PRODUCTION, snapshot: str = "s" * 64, method: str = "dpo") -> UUID:
    """Stores a round that is done."""
    identity = new_id()
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO training.training_round (id, method, state, config, config_digest, snapshot, policy,"
            " reference, asked_by, reason, ended_at, summary)"
            " VALUES (%s, %s, 'done', '{}', 'd', %s, %s, %s, 'ann', 'test', now(), '{}')",
            (identity, method, snapshot, policy, policy),
        )
    return identity


def put_checkpoint(
    url: str, round_id: UUID, step: int, kl: float, policy: str | None, reward: float | None = None
) -> None:
    """Stores a checkpoint of a round."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO training.checkpoint (id, round_id, step, kl_k1, kl_k3, reward, digest, policy, path)"
            " VALUES (%s, %s, %s, %s, %s, %s, 'd', %s, 'p')",
            (new_id(), round_id, step, kl, kl, reward, policy),
        )


def put_reward_model(url: str, parent: str, snapshot: str, **provenance: Any) -> str:
    """Registers a reward model; returns its ref."""
    ref = "taste@" + "b" * 12
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO reward.reward_model (ref, name, version, digest, artifact, parent, snapshot, report,"
            " provenance) VALUES (%s, 'taste', %s, %s, 'a', %s, %s, '{}', %s)",
            (ref, "b" * 12, "b" * 64, parent, snapshot, Jsonb(provenance)),
        )
    return ref


def rows(url: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """What a query gives."""
    with psycopg.connect(url) as connection:
        return connection.execute(query, values).fetchall()  # type: ignore[call-overload, no-any-return]
