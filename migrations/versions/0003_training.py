"""Training: rounds, their checkpoints, metrics and control words; reward models in a schema of their own.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TRAINING = """
CREATE SCHEMA training;

CREATE TABLE training.training_round (
    id               uuid PRIMARY KEY,
    method           text NOT NULL CHECK (method IN ('sft', 'rm', 'dpo')),
    state            text NOT NULL DEFAULT 'asked'
        CHECK (state IN ('asked', 'running', 'done', 'failed', 'stopped')),
    config           jsonb NOT NULL,
    config_digest    text NOT NULL,
    snapshot         text NOT NULL,
    policy           text NOT NULL REFERENCES registry.policy (ref),
    reference        text NOT NULL REFERENCES registry.policy (ref),
    reference_digest text,
    sweep            uuid,
    asked_by         text NOT NULL,
    reason           text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    sent_at          timestamptz,
    started_at       timestamptz,
    ended_at         timestamptz,
    beat_at          timestamptz,
    worker           text,
    attempts         integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    step             integer NOT NULL DEFAULT 0 CHECK (step >= 0),
    total_steps      integer CHECK (total_steps > 0),
    data             jsonb,
    error            text,
    summary          jsonb,
    code_version     text,
    folder           text,
    CHECK (state IN ('asked', 'running') OR ended_at IS NOT NULL),
    CHECK (state <> 'running' OR (worker IS NOT NULL AND beat_at IS NOT NULL)),
    CHECK (state <> 'failed' OR error IS NOT NULL),
    CHECK (state <> 'done' OR summary IS NOT NULL)
);
CREATE INDEX training_round_open ON training.training_round (state, id) WHERE state IN ('asked', 'running');
CREATE INDEX training_round_sweep ON training.training_round (sweep) WHERE sweep IS NOT NULL;

CREATE TABLE training.checkpoint (
    id               uuid PRIMARY KEY,
    round_id         uuid NOT NULL REFERENCES training.training_round (id),
    step             integer NOT NULL CHECK (step >= 0),
    kl_k1            double precision,
    kl_k1_se         double precision,
    kl_k3            double precision,
    kl_k3_se         double precision,
    reward           double precision,
    accuracy         double precision CHECK (accuracy BETWEEN 0 AND 1),
    length_quantiles jsonb,
    digest           text NOT NULL,
    policy           text REFERENCES registry.policy (ref),
    path             text NOT NULL,
    is_last          boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (round_id, step)
);
CREATE INDEX checkpoint_policy ON training.checkpoint (policy) WHERE policy IS NOT NULL;

CREATE TABLE training.metric (
    round_id uuid NOT NULL REFERENCES training.training_round (id),
    step     integer NOT NULL CHECK (step >= 0),
    name     text NOT NULL,
    value    double precision NOT NULL,
    PRIMARY KEY (round_id, name, step)
);

CREATE TABLE training.round_control (
    id         uuid PRIMARY KEY,
    round_id   uuid NOT NULL REFERENCES training.training_round (id),
    word       text NOT NULL CHECK (word IN ('ok', 'stop')),
    who        text NOT NULL,
    why        text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX round_control_newest ON training.round_control (round_id, created_at DESC, id DESC);
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON training.round_control
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();
"""

REWARD = """
CREATE SCHEMA reward;

CREATE TABLE reward.reward_model (
    ref        text PRIMARY KEY,
    number     bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    name       text NOT NULL,
    version    text NOT NULL,
    digest     text NOT NULL,
    artifact   text NOT NULL,
    parent     text REFERENCES registry.policy (ref),
    snapshot   text NOT NULL,
    round_id   uuid REFERENCES training.training_round (id),
    report     jsonb NOT NULL,
    provenance jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (name, digest),
    CHECK (ref = name || '@' || version),
    CHECK (version = left(digest, 12))
);
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON reward.reward_model
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();

CREATE TABLE reward.measurement (
    id           uuid PRIMARY KEY,
    reward_model text NOT NULL REFERENCES reward.reward_model (ref),
    policy       text,
    snapshot     text NOT NULL,
    report       jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX measurement_model ON reward.measurement (reward_model, created_at);
"""

KEYS = """
CREATE FUNCTION serving.operator_of_key(presented bytea) RETURNS text
LANGUAGE sql STABLE STRICT SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT name FROM serving.api_key WHERE hash = presented AND role = 'operator' AND revoked_at IS NULL
$$;
REVOKE ALL ON FUNCTION serving.operator_of_key(bytea) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION serving.operator_of_key(bytea) TO ratchet_trainer;
"""

GRANTS = """
GRANT SELECT ON serving.traffic_plan TO ratchet_trainer;
GRANT USAGE ON SCHEMA training TO ratchet_trainer, ratchet_evaluator, ratchet_operator, ratchet_report;
GRANT USAGE ON SCHEMA reward TO ratchet_trainer, ratchet_operator;

GRANT SELECT, INSERT, UPDATE ON training.training_round, training.checkpoint, training.metric
    TO ratchet_trainer;
GRANT SELECT, INSERT ON training.round_control, reward.reward_model, reward.measurement TO ratchet_trainer;

GRANT SELECT (id, round_id, step, kl_k1, kl_k1_se, kl_k3, kl_k3_se, accuracy, length_quantiles, digest,
              policy, is_last, created_at)
    ON training.checkpoint TO ratchet_evaluator;
GRANT SELECT (id, method, state, config_digest, snapshot, policy, reference, reference_digest, sweep,
              created_at, started_at, ended_at, step, total_steps)
    ON training.training_round TO ratchet_evaluator;
GRANT SELECT ON training.round_control TO ratchet_evaluator;
GRANT INSERT (id, round_id, word, who, why) ON training.round_control TO ratchet_evaluator;

GRANT SELECT ON ALL TABLES IN SCHEMA training, reward TO ratchet_operator;
GRANT INSERT (id, method, config, config_digest, snapshot, policy, reference, sweep, asked_by, reason)
    ON training.training_round TO ratchet_operator;
GRANT UPDATE (state, attempts, sent_at, ended_at, error) ON training.training_round TO ratchet_operator;
GRANT INSERT (id, round_id, word, who, why) ON training.round_control TO ratchet_operator;

GRANT SELECT ON training.training_round, training.checkpoint, training.metric, training.round_control
    TO ratchet_report;
"""


def upgrade() -> None:
    """Adds both schemas; the trainer may ask what is in production and whether a key is an operator's."""
    for part in (TRAINING, REWARD, KEYS, GRANTS):
        op.execute(part)


def downgrade() -> None:
    """Removes both schemas and what the trainer was granted elsewhere."""
    op.execute("DROP SCHEMA reward, training CASCADE")
    op.execute("REVOKE SELECT ON serving.traffic_plan FROM ratchet_trainer")
    op.execute("DROP FUNCTION serving.operator_of_key(bytea)")
