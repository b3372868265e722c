"""Releases: their state, their audit, what each look saw, drills, operators' sessions, offline aborts.

Revision ID: 0004
Revises: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SERVING = """
CREATE INDEX response_unlabelled ON serving.response (id) WHERE labels = '{}';
ALTER TABLE serving.traffic_plan ADD COLUMN fallback text, ADD COLUMN cut boolean NOT NULL DEFAULT false;
"""

RELEASES = """
CREATE SCHEMA releases;

CREATE TABLE releases.release (
    id           uuid PRIMARY KEY,
    model        text NOT NULL,
    policy       text NOT NULL REFERENCES registry.policy (ref),
    baseline     text NOT NULL REFERENCES registry.policy (ref),
    plan_name    text NOT NULL,
    plan         jsonb NOT NULL,
    salt         text NOT NULL,
    state        text NOT NULL CHECK (state IN ('preparing', 'running', 'paused', 'promoted', 'closed',
                                                'aborted', 'failed')),
    stage        text NOT NULL,
    stage_number integer NOT NULL,
    stage_since  timestamptz NOT NULL DEFAULT now(),
    first_plan   bigint REFERENCES serving.traffic_plan (version),
    stage_plan   bigint REFERENCES serving.traffic_plan (version),
    paused_at    timestamptz,
    engine_id    uuid NOT NULL REFERENCES registry.engine (id),
    engine_own   boolean NOT NULL,
    actor        text NOT NULL,
    reason       text NOT NULL,
    predicted    jsonb,
    observed     jsonb,
    created_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    engines_down timestamptz,
    CHECK (policy <> baseline),
    CHECK ((state = 'paused') = (paused_at IS NOT NULL)),
    CHECK ((ended_at IS NULL) = (state IN ('preparing', 'running', 'paused', 'promoted')))
);
CREATE UNIQUE INDEX release_one_open ON releases.release (model) WHERE ended_at IS NULL;
CREATE INDEX release_newest ON releases.release (model, id DESC);

CREATE TABLE releases.event (
    id           uuid PRIMARY KEY,
    release_id   uuid REFERENCES releases.release (id),
    model        text NOT NULL,
    kind         text NOT NULL,
    actor        text NOT NULL,
    reason       text NOT NULL,
    before       jsonb,
    after        jsonb,
    plan_version bigint REFERENCES serving.traffic_plan (version),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX event_release ON releases.event (release_id, id);
CREATE INDEX event_model ON releases.event (model, id);
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON releases.event
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();

CREATE TABLE releases.look (
    id         uuid PRIMARY KEY,
    release_id uuid NOT NULL REFERENCES releases.release (id),
    stage      text NOT NULL,
    number     integer NOT NULL,
    decision   text NOT NULL,
    reason     text NOT NULL,
    exposure   jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX look_release ON releases.look (release_id, id);

CREATE TABLE releases.analysis (
    look_id     uuid NOT NULL REFERENCES releases.look (id) ON DELETE CASCADE,
    metric      text NOT NULL,
    n_baseline  bigint NOT NULL,
    n_candidate bigint NOT NULL,
    baseline    double precision,
    candidate   double precision,
    estimate    double precision,
    low         double precision,
    high        double precision,
    decision    text NOT NULL,
    detail      jsonb NOT NULL,
    PRIMARY KEY (look_id, metric)
);

CREATE TABLE releases.drill (
    id          uuid PRIMARY KEY,
    model       text NOT NULL,
    production  text NOT NULL,
    other       text NOT NULL,
    actor       text NOT NULL,
    state       text NOT NULL CHECK (state IN ('running', 'good', 'bad')),
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    result      jsonb,
    CHECK ((state = 'running') = (finished_at IS NULL))
);
CREATE UNIQUE INDEX drill_one_at_a_time ON releases.drill (model) WHERE finished_at IS NULL;
CREATE INDEX drill_newest ON releases.drill (model, id DESC);

CREATE TABLE releases.offline_abort (
    id          uuid PRIMARY KEY,
    model       text NOT NULL,
    actor       text NOT NULL,
    reason      text NOT NULL,
    switched_at timestamptz NOT NULL,
    cut         boolean NOT NULL,
    gateway     text NOT NULL,
    told_at     timestamptz NOT NULL DEFAULT now(),
    settled_at  timestamptz
);
CREATE INDEX offline_abort_unsettled ON releases.offline_abort (id) WHERE settled_at IS NULL;

CREATE TABLE releases.operator_session (
    hash       bytea PRIMARY KEY,
    key_id     uuid NOT NULL REFERENCES serving.api_key (id),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
"""

GRANTS = """
GRANT USAGE ON SCHEMA releases TO ratchet_gateway, ratchet_operator, ratchet_report;
GRANT SELECT, INSERT, UPDATE ON releases.release, releases.drill TO ratchet_operator;
GRANT SELECT, INSERT ON releases.event, releases.look, releases.analysis TO ratchet_operator;
GRANT SELECT, INSERT, DELETE ON releases.operator_session TO ratchet_operator;
GRANT SELECT ON releases.offline_abort TO ratchet_operator;
GRANT UPDATE (settled_at) ON releases.offline_abort TO ratchet_operator;
GRANT UPDATE (labels) ON serving.response TO ratchet_operator;
GRANT SELECT (id), INSERT ON releases.offline_abort TO ratchet_gateway;
GRANT SELECT ON releases.release, releases.event, releases.look, releases.analysis, releases.drill
    TO ratchet_report;
"""


def upgrade() -> None:
    """Adds the schema `releases`, and to a traffic plan where traffic returns to."""
    for part in (SERVING, RELEASES, GRANTS):
        op.execute(part)


def downgrade() -> None:
    """Removes what `upgrade` added."""
    op.execute("DROP SCHEMA releases CASCADE")
    op.execute("DROP INDEX serving.response_unlabelled")
    op.execute("REVOKE UPDATE (labels) ON serving.response FROM ratchet_operator")
    op.execute("ALTER TABLE serving.traffic_plan DROP COLUMN fallback, DROP COLUMN cut")
