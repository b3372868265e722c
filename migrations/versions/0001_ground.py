"""Roles, registry, serving, operations and the Celery broker's tables, with the grants of each role.

Revision ID: 0001
Revises: none
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROLES = """
DO $$
DECLARE role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['ratchet_gateway', 'ratchet_feedback', 'ratchet_trainer',
                                     'ratchet_evaluator', 'ratchet_operator', 'ratchet_report']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT', role_name);
        END IF;
    END LOOP;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO ratchet_gateway, ratchet_feedback, ratchet_trainer, '
                   'ratchet_evaluator, ratchet_operator, ratchet_report', current_database());
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO ratchet_gateway', current_database());
END $$;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
"""

REGISTRY = """
CREATE SCHEMA registry;

CREATE TABLE registry.decode_config (
    digest     text PRIMARY KEY,
    config     jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE registry.policy (
    ref              text PRIMARY KEY,
    number           bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    name             text NOT NULL,
    version          text NOT NULL,
    digest           text NOT NULL,
    weights_digest   text NOT NULL,
    tokenizer_digest text NOT NULL,
    template_digest  text NOT NULL,
    decode_digest    text NOT NULL REFERENCES registry.decode_config (digest),
    artifact         text NOT NULL,
    parent           text REFERENCES registry.policy (ref),
    architecture     jsonb NOT NULL,
    golden           jsonb NOT NULL,
    provenance       jsonb NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (name, digest),
    CHECK (ref = name || '@' || version),
    CHECK (version = left(digest, 12))
);

CREATE TABLE registry.engine (
    id          uuid PRIMARY KEY,
    policy      text NOT NULL REFERENCES registry.policy (ref),
    managed     boolean NOT NULL,
    desired     text NOT NULL CHECK (desired IN ('up', 'down')),
    state       text NOT NULL CHECK (state IN ('waiting', 'starting', 'up', 'backoff', 'failed', 'stopped')),
    url         text,
    fingerprint text,
    pid         integer,
    restarts    integer NOT NULL DEFAULT 0,
    last_error  text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    CHECK (managed OR url IS NOT NULL)
);

CREATE TABLE registry.engine_proof (
    id                 uuid PRIMARY KEY,
    engine_id          uuid NOT NULL REFERENCES registry.engine (id),
    policy             text NOT NULL,
    gateway            text NOT NULL,
    fingerprint        text,
    ok                 boolean NOT NULL,
    max_abs_difference double precision,
    tolerance          double precision NOT NULL,
    reason             text,
    detail             jsonb,
    created_at         timestamptz NOT NULL DEFAULT now()
);

CREATE FUNCTION registry.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON registry.decode_config
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON registry.policy
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();

CREATE FUNCTION registry.notify_gateways() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('ratchet_gateway', TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER notify AFTER INSERT OR UPDATE OR DELETE ON registry.engine
    FOR EACH STATEMENT EXECUTE FUNCTION registry.notify_gateways();
"""

SERVING = """
CREATE SCHEMA serving;

CREATE TABLE serving.api_key (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    role       text NOT NULL CHECK (role IN ('client', 'rater', 'operator', 'service')),
    prefix     text NOT NULL,
    hash       bytea NOT NULL UNIQUE,
    limits     jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);
CREATE TRIGGER notify AFTER INSERT OR UPDATE OR DELETE ON serving.api_key
    FOR EACH STATEMENT EXECUTE FUNCTION registry.notify_gateways();

CREATE TABLE serving.traffic_plan (
    version     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model       text NOT NULL,
    stage       text NOT NULL,
    arms        jsonb NOT NULL,
    enforcement text NOT NULL CHECK (enforcement IN ('replace', 'refuse')),
    salt        text NOT NULL,
    actor       text NOT NULL,
    reason      text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX traffic_plan_newest ON serving.traffic_plan (model, version DESC);
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON serving.traffic_plan
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();
CREATE TRIGGER notify AFTER INSERT ON serving.traffic_plan
    FOR EACH STATEMENT EXECUTE FUNCTION registry.notify_gateways();

CREATE TABLE serving.response (
    id                uuid PRIMARY KEY,
    created_at        timestamptz NOT NULL,
    kind              text NOT NULL CHECK (kind IN ('chat', 'completion')),
    status            text NOT NULL CHECK (status IN ('ok', 'error', 'rejected', 'cancelled', 'lost')),
    http_status       integer NOT NULL,
    error             text,
    error_code        text,
    model             text,
    policy            text,
    pinned            boolean NOT NULL,
    decode            text,
    decode_overridden jsonb NOT NULL,
    arm               text,
    stage             text,
    plan_version      bigint,
    engine_id         uuid,
    fingerprint       text,
    stamp             text NOT NULL CHECK (stamp IN ('verified', 'unverified', 'mismatch')),
    key_id            uuid,
    user_id           text,
    session_id        text,
    conversation_id   text,
    history_hash      text,
    prompt_hash       text,
    messages          jsonb,
    parameters_asked  jsonb NOT NULL,
    parameters_used   jsonb NOT NULL,
    output            text,
    outputs           jsonb NOT NULL,
    output_sha256     text,
    finish_reason     text,
    prompt_tokens     integer,
    output_tokens     integer,
    stream            boolean NOT NULL,
    ttft_ms           double precision,
    itl_p50_ms        double precision,
    itl_p99_ms        double precision,
    queue_ms          double precision,
    duration_ms       double precision,
    trace_id          text,
    gateway           text NOT NULL,
    pair_of           uuid,
    probe             text,
    labels            jsonb NOT NULL,
    verdicts          jsonb NOT NULL,
    sanitized         boolean NOT NULL
) PARTITION BY RANGE (id);
CREATE INDEX response_conversation ON serving.response (conversation_id, id);
CREATE INDEX response_policy ON serving.response (policy, id);
CREATE INDEX response_user ON serving.response (user_id, id) WHERE user_id IS NOT NULL;
CREATE INDEX response_pair ON serving.response (pair_of) WHERE pair_of IS NOT NULL;
CREATE TABLE serving.response_other PARTITION OF serving.response DEFAULT;

CREATE FUNCTION serving.uuid_floor(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

CREATE FUNCTION serving.ensure_response_partitions(months_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    start timestamptz;
    low   uuid;
    high  uuid;
    label text;
    made  integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('serving.ensure_response_partitions'));
    FOR offset_months IN 0..months_ahead LOOP
        start := (date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => offset_months))
                 AT TIME ZONE 'UTC';
        low := serving.uuid_floor(start);
        high := serving.uuid_floor((start AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC');
        label := 'response_' || to_char(start AT TIME ZONE 'UTC', 'YYYY_MM');
        CONTINUE WHEN to_regclass('serving.' || label) IS NOT NULL;
        CONTINUE WHEN EXISTS (SELECT FROM serving.response_other WHERE id >= low AND id < high);
        EXECUTE format('CREATE TABLE serving.%I PARTITION OF serving.response FOR VALUES FROM (%L) TO (%L)',
                       label, low, high);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
REVOKE ALL ON FUNCTION serving.ensure_response_partitions(integer) FROM PUBLIC;
SELECT serving.ensure_response_partitions(3);
"""

OPERATIONS = """
CREATE SCHEMA operations;

CREATE TABLE operations.heartbeat (
    process text PRIMARY KEY,
    beat_at timestamptz NOT NULL,
    detail  jsonb NOT NULL
);

CREATE TABLE operations.alarm (
    id         uuid PRIMARY KEY,
    kind       text NOT NULL,
    subject    text NOT NULL,
    detail     jsonb NOT NULL,
    raised_at  timestamptz NOT NULL DEFAULT now(),
    cleared_at timestamptz
);
CREATE UNIQUE INDEX alarm_standing ON operations.alarm (kind, subject) WHERE cleared_at IS NULL;
"""

BROKER = """
CREATE SCHEMA broker;
CREATE SEQUENCE broker.queue_id_sequence;
CREATE SEQUENCE broker.message_id_sequence;
CREATE TABLE broker.kombu_queue (
    id   integer PRIMARY KEY DEFAULT nextval('broker.queue_id_sequence'),
    name varchar(200) UNIQUE
);
CREATE TABLE broker.kombu_message (
    id        integer PRIMARY KEY DEFAULT nextval('broker.message_id_sequence'),
    visible   boolean,
    timestamp timestamp,
    payload   text NOT NULL,
    version   smallint NOT NULL,
    queue_id  integer CONSTRAINT "FK_kombu_message_queue" REFERENCES broker.kombu_queue (id)
);
CREATE INDEX ix_kombu_message_visible ON broker.kombu_message (visible);
CREATE INDEX ix_kombu_message_timestamp ON broker.kombu_message (timestamp);
CREATE INDEX ix_kombu_message_timestamp_id ON broker.kombu_message (timestamp, id);
"""

GRANTS = """
GRANT USAGE ON SCHEMA registry, serving, operations TO
    ratchet_gateway, ratchet_feedback, ratchet_trainer, ratchet_evaluator, ratchet_operator, ratchet_report;
GRANT USAGE ON SCHEMA broker TO ratchet_feedback, ratchet_trainer, ratchet_evaluator;

GRANT SELECT ON registry.policy, registry.decode_config TO
    ratchet_gateway, ratchet_feedback, ratchet_trainer, ratchet_evaluator, ratchet_operator, ratchet_report;
GRANT INSERT ON registry.policy, registry.decode_config TO ratchet_operator, ratchet_trainer;
GRANT SELECT ON registry.engine TO ratchet_gateway, ratchet_evaluator, ratchet_operator, ratchet_report;
GRANT INSERT, UPDATE ON registry.engine TO ratchet_operator;
GRANT SELECT, INSERT ON registry.engine_proof TO ratchet_gateway;
GRANT SELECT ON registry.engine_proof TO ratchet_operator, ratchet_report;

GRANT SELECT ON serving.api_key TO ratchet_gateway, ratchet_operator;
GRANT INSERT ON serving.api_key TO ratchet_operator;
GRANT UPDATE (revoked_at) ON serving.api_key TO ratchet_operator;
GRANT SELECT ON serving.traffic_plan TO
    ratchet_gateway, ratchet_feedback, ratchet_evaluator, ratchet_operator, ratchet_report;
GRANT INSERT ON serving.traffic_plan TO ratchet_operator;
GRANT SELECT (id), INSERT ON serving.response TO ratchet_gateway;
GRANT SELECT ON serving.response TO ratchet_feedback, ratchet_operator, ratchet_report;
GRANT EXECUTE ON FUNCTION serving.uuid_floor(timestamptz) TO
    ratchet_gateway, ratchet_feedback, ratchet_operator, ratchet_report;
GRANT EXECUTE ON FUNCTION serving.ensure_response_partitions(integer) TO ratchet_feedback, ratchet_operator;

GRANT SELECT, INSERT, UPDATE ON operations.heartbeat TO
    ratchet_gateway, ratchet_feedback, ratchet_trainer, ratchet_evaluator, ratchet_operator;
GRANT SELECT, INSERT, UPDATE ON operations.alarm TO
    ratchet_gateway, ratchet_feedback, ratchet_trainer, ratchet_evaluator, ratchet_operator;
GRANT SELECT ON operations.heartbeat, operations.alarm TO ratchet_report;

GRANT SELECT, INSERT, UPDATE, DELETE ON broker.kombu_queue, broker.kombu_message TO
    ratchet_feedback, ratchet_trainer, ratchet_evaluator;
GRANT USAGE ON SEQUENCE broker.queue_id_sequence, broker.message_id_sequence TO
    ratchet_feedback, ratchet_trainer, ratchet_evaluator;
"""


def upgrade() -> None:
    """Makes the ground every later revision stands on."""
    for part in (ROLES, REGISTRY, SERVING, OPERATIONS, BROKER, GRANTS):
        op.execute(part)


def downgrade() -> None:
    """Removes the schemas; roles stay, since other databases of the cluster may use them."""
    op.execute("DROP SCHEMA broker, operations, serving, registry CASCADE")
