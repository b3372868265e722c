"""Feedback: events, comparisons, leases, ratings, imports, snapshots, and what it takes to forget a person.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

EVENTS = """
CREATE SCHEMA feedback;

CREATE FUNCTION feedback.split_of(prompt_hash text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN place < 10 THEN 'heldout' WHEN place < 20 THEN 'validation' ELSE 'train' END
    FROM (SELECT (signed % 100 + CASE WHEN signed < 0 THEN 116 ELSE 0 END) % 100 AS place
          FROM (SELECT ('x' || left(prompt_hash, 16))::bit(64)::bigint AS signed) AS high) AS placed
$$;

CREATE TABLE feedback.metric (
    name        text PRIMARY KEY,
    type        text NOT NULL CHECK (type IN ('number', 'boolean', 'category')),
    low         double precision,
    high        double precision,
    categories  jsonb,
    description text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CHECK ((type = 'category') = (categories IS NOT NULL)),
    CHECK (type = 'number' OR (low IS NULL AND high IS NULL))
);

CREATE TABLE feedback.feedback_event (
    id                uuid PRIMARY KEY,
    created_at        timestamptz NOT NULL DEFAULT now(),
    response_id       uuid NOT NULL,
    choice            smallint NOT NULL DEFAULT 0 CHECK (choice >= 0),
    origin            text NOT NULL CHECK (origin IN ('client', 'inferred')),
    key_id            uuid,
    kind              text NOT NULL CHECK (kind IN ('thumb', 'rating', 'comment', 'edit', 'regenerate',
                                                    'retry', 'copy', 'escalate', 'outcome', 'metric')),
    value             double precision,
    text              text,
    name              text,
    other_response_id uuid,
    user_id           text,
    body_sha256       text NOT NULL,
    state             text NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'parked', 'joined', 'unknown')),
    settled_at        timestamptz,
    CHECK (origin = 'inferred' OR key_id IS NOT NULL),
    CHECK (kind <> 'thumb' OR value IN (-1, 1)),
    CHECK (kind <> 'rating' OR value IS NOT NULL),
    CHECK (kind NOT IN ('comment', 'edit') OR text IS NOT NULL),
    CHECK ((kind = 'metric') = (name IS NOT NULL))
) PARTITION BY RANGE (id);
CREATE INDEX feedback_event_response ON feedback.feedback_event (response_id);
CREATE INDEX feedback_event_created ON feedback.feedback_event (created_at);
CREATE INDEX feedback_event_unsettled ON feedback.feedback_event (id) WHERE state <> 'joined';
CREATE INDEX feedback_event_user ON feedback.feedback_event (user_id) WHERE user_id IS NOT NULL;
CREATE TABLE feedback.feedback_event_other PARTITION OF feedback.feedback_event DEFAULT;

CREATE FUNCTION feedback.ensure_event_partitions(months_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    start timestamptz;
    low   uuid;
    high  uuid;
    label text;
    made  integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('feedback.ensure_event_partitions'));
    FOR offset_months IN 0..months_ahead LOOP
        start := (date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => offset_months))
                 AT TIME ZONE 'UTC';
        low := serving.uuid_floor(start);
        high := serving.uuid_floor((start AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC');
        label := 'feedback_event_' || to_char(start AT TIME ZONE 'UTC', 'YYYY_MM');
        CONTINUE WHEN to_regclass('feedback.' || label) IS NOT NULL;
        CONTINUE WHEN EXISTS (SELECT FROM feedback.feedback_event_other WHERE id >= low AND id < high);
        EXECUTE format('CREATE TABLE feedback.%I PARTITION OF feedback.feedback_event '
                       'FOR VALUES FROM (%L) TO (%L)', label, low, high);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
REVOKE ALL ON FUNCTION feedback.ensure_event_partitions(integer) FROM PUBLIC;
SELECT feedback.ensure_event_partitions(3);

CREATE TABLE feedback.watermark (
    name       text PRIMARY KEY,
    position   uuid NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
"""

RATING = """
CREATE TABLE feedback.rater (
    id                   uuid PRIMARY KEY,
    name                 text NOT NULL,
    pool                 text NOT NULL CHECK (pool IN ('preference', 'evaluation')),
    status               text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'set_aside', 'closed')),
    daily_quota          integer NOT NULL CHECK (daily_quota > 0),
    guidelines_read_at   timestamptz,
    set_aside_at         timestamptz,
    set_aside_reason     text,
    created_at           timestamptz NOT NULL DEFAULT now(),
    UNIQUE (id, pool)
);
CREATE UNIQUE INDEX rater_one_pool_a_person ON feedback.rater (lower(name));

CREATE FUNCTION feedback.refuse_pool_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a rater stays in one pool for ever: % is in %', OLD.name, OLD.pool
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER one_pool BEFORE UPDATE ON feedback.rater FOR EACH ROW
    WHEN (OLD.pool IS DISTINCT FROM NEW.pool OR OLD.id IS DISTINCT FROM NEW.id)
    EXECUTE FUNCTION feedback.refuse_pool_change();

CREATE TABLE feedback.rater_token (
    hash       bytea PRIMARY KEY,
    rater_id   uuid NOT NULL REFERENCES feedback.rater (id) ON DELETE CASCADE,
    kind       text NOT NULL CHECK (kind IN ('link', 'session')),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX rater_token_rater ON feedback.rater_token (rater_id);

CREATE TABLE feedback.comparison (
    id            uuid PRIMARY KEY,
    created_at    timestamptz NOT NULL DEFAULT now(),
    pool          text NOT NULL CHECK (pool IN ('preference', 'evaluation')),
    source        text NOT NULL CHECK (source IN ('shadow', 'choices', 'regenerate', 'edit', 'sampled',
                                                  'gold', 'candidate')),
    prompt        jsonb NOT NULL,
    prompt_hash   text NOT NULL,
    history_hash  text NOT NULL,
    split         text NOT NULL,
    a_answer      text NOT NULL,
    a_text        text NOT NULL,
    a_policy      text NOT NULL,
    a_decode      text,
    b_answer      text NOT NULL,
    b_text        text NOT NULL,
    b_policy      text NOT NULL,
    b_decode      text,
    answered_at   timestamptz NOT NULL,
    user_id       text,
    language      text NOT NULL DEFAULT 'und',
    length        text NOT NULL DEFAULT 'unknown',
    names_policy  boolean NOT NULL DEFAULT false,
    bands         bigint[] NOT NULL DEFAULT '{}',
    gold_choice   text CHECK (gold_choice IN ('a', 'b', 'tie', 'both_bad')),
    wanted        integer CHECK (wanted > 0),
    leased        integer NOT NULL DEFAULT 0 CHECK (leased >= 0),
    voted         integer NOT NULL DEFAULT 0 CHECK (voted >= 0),
    UNIQUE (id, pool),
    UNIQUE (pool, a_answer, b_answer),
    CHECK (a_answer < b_answer),
    CHECK (split = feedback.split_of(prompt_hash)),
    CONSTRAINT held_out_never_trains
        CHECK (pool = 'evaluation' OR split <> 'heldout' OR gold_choice IS NOT NULL),
    CONSTRAINT gold_has_an_answer CHECK ((source = 'gold') = (gold_choice IS NOT NULL)),
    CONSTRAINT gold_is_unbounded CHECK ((gold_choice IS NOT NULL) = (wanted IS NULL)),
    CONSTRAINT overlap_quota CHECK (leased + voted <= wanted)
);
CREATE INDEX comparison_open ON feedback.comparison (pool, leased, voted DESC, id)
    WHERE wanted IS NOT NULL AND leased + voted < wanted;
CREATE INDEX comparison_gold ON feedback.comparison (pool, id) WHERE gold_choice IS NOT NULL;
CREATE INDEX comparison_bands ON feedback.comparison USING gin (bands);
CREATE INDEX comparison_user ON feedback.comparison (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX comparison_created ON feedback.comparison (created_at);

CREATE TABLE feedback.lease (
    id            uuid PRIMARY KEY,
    comparison_id uuid NOT NULL,
    rater_id      uuid NOT NULL,
    pool          text NOT NULL,
    left_side     text NOT NULL CHECK (left_side IN ('a', 'b')),
    state         text NOT NULL
        CHECK (state IN ('open', 'waiting', 'voted', 'skipped', 'expired', 'revoked')),
    leased_at     timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    UNIQUE (comparison_id, rater_id),
    FOREIGN KEY (comparison_id, pool) REFERENCES feedback.comparison (id, pool) ON DELETE CASCADE,
    FOREIGN KEY (rater_id, pool) REFERENCES feedback.rater (id, pool)
);
CREATE UNIQUE INDEX lease_one_open_a_rater ON feedback.lease (rater_id) WHERE state = 'open';
CREATE INDEX lease_expiry ON feedback.lease (expires_at) WHERE state IN ('open', 'waiting');
CREATE INDEX lease_rater ON feedback.lease (rater_id, leased_at);

CREATE TABLE feedback.rating (
    id            uuid PRIMARY KEY,
    lease_id      uuid NOT NULL REFERENCES feedback.lease (id) ON DELETE CASCADE,
    comparison_id uuid NOT NULL,
    rater_id      uuid NOT NULL,
    pool          text NOT NULL,
    choice        text NOT NULL CHECK (choice IN ('a', 'b', 'tie', 'both_bad', 'skip')),
    left_side     text NOT NULL CHECK (left_side IN ('a', 'b')),
    reasons       text[] NOT NULL DEFAULT '{}',
    note          text,
    seconds       double precision NOT NULL CHECK (seconds >= 0),
    flagged       boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT now(),
    undone_at     timestamptz,
    FOREIGN KEY (comparison_id, pool) REFERENCES feedback.comparison (id, pool) ON DELETE CASCADE,
    FOREIGN KEY (rater_id, pool) REFERENCES feedback.rater (id, pool)
);
CREATE UNIQUE INDEX rating_one_standing_a_lease ON feedback.rating (lease_id) WHERE undone_at IS NULL;
CREATE INDEX rating_comparison ON feedback.rating (comparison_id);
CREATE INDEX rating_rater ON feedback.rating (rater_id, created_at);
CREATE INDEX rating_created ON feedback.rating (created_at);

CREATE TABLE feedback.sample_request (
    id              uuid PRIMARY KEY,
    response_id     uuid NOT NULL,
    first_policy    text NOT NULL,
    second_policy   text NOT NULL,
    state           text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'done', 'failed')),
    attempts        integer NOT NULL DEFAULT 0,
    error           text,
    first_answer    uuid,
    second_answer   uuid,
    requested_at    timestamptz NOT NULL DEFAULT now(),
    sent_at         timestamptz,
    finished_at     timestamptz
);
CREATE INDEX sample_request_pending ON feedback.sample_request (id) WHERE state = 'pending';
"""

DATASETS = """
CREATE TABLE feedback.heldout_prompt (
    suite       text NOT NULL,
    prompt_hash text NOT NULL,
    text        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (suite, prompt_hash)
);
CREATE INDEX heldout_prompt_hash ON feedback.heldout_prompt (prompt_hash);

CREATE TABLE feedback.imported_item (
    id          uuid PRIMARY KEY,
    name        text NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('pairs', 'demonstrations')),
    digest      text NOT NULL,
    "row"       jsonb NOT NULL,
    prompt_hash text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (kind, digest)
);

CREATE TABLE feedback.dataset_snapshot (
    digest           text PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('pairs', 'demonstrations')),
    path             text NOT NULL,
    manifest         jsonb NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    withdrawn_at     timestamptz,
    withdrawn_reason text
);

CREATE TABLE feedback.snapshot_build (
    id           uuid PRIMARY KEY,
    kind         text NOT NULL CHECK (kind IN ('pairs', 'demonstrations')),
    request      jsonb NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    state        text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'done', 'failed')),
    attempts     integer NOT NULL DEFAULT 0,
    sent_at      timestamptz,
    digest       text REFERENCES feedback.dataset_snapshot (digest),
    ledger       jsonb,
    staleness    jsonb,
    error        text,
    finished_at  timestamptz,
    CHECK ((state = 'done') = (digest IS NOT NULL))
);
CREATE INDEX snapshot_build_pending ON feedback.snapshot_build (id) WHERE state = 'pending';

CREATE TABLE feedback.preference_pair (
    snapshot             text NOT NULL REFERENCES feedback.dataset_snapshot (digest),
    position             integer NOT NULL,
    split                text NOT NULL CHECK (split IN ('train', 'validation')),
    prompt_hash          text NOT NULL,
    chosen_response_id   text,
    rejected_response_id text,
    chosen_policy        text NOT NULL,
    rejected_policy      text NOT NULL,
    chosen_decode        text,
    rejected_decode      text,
    source               text NOT NULL,
    votes                integer NOT NULL,
    weight               double precision NOT NULL,
    agreement            double precision,
    raters               text[] NOT NULL,
    user_id              text,
    created_at           timestamptz,
    PRIMARY KEY (snapshot, position),
    CHECK (split = feedback.split_of(prompt_hash))
);
CREATE INDEX preference_pair_user ON feedback.preference_pair (user_id) WHERE user_id IS NOT NULL;

CREATE TABLE feedback.demonstration (
    snapshot    text NOT NULL REFERENCES feedback.dataset_snapshot (digest),
    position    integer NOT NULL,
    split       text NOT NULL CHECK (split IN ('train', 'validation')),
    prompt_hash text NOT NULL,
    response_id text,
    policy      text NOT NULL,
    decode      text,
    source      text NOT NULL,
    weight      double precision NOT NULL,
    user_id     text,
    created_at  timestamptz,
    PRIMARY KEY (snapshot, position),
    CHECK (split = feedback.split_of(prompt_hash))
);
CREATE INDEX demonstration_user ON feedback.demonstration (user_id) WHERE user_id IS NOT NULL;

CREATE TABLE feedback.policy_mark (
    policy     text NOT NULL REFERENCES registry.policy (ref),
    snapshot   text NOT NULL REFERENCES feedback.dataset_snapshot (digest),
    reason     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (policy, snapshot)
);

CREATE TABLE feedback.forgotten (
    user_hash    text PRIMARY KEY,
    forgotten_at timestamptz NOT NULL DEFAULT now()
);

CREATE VIEW feedback.heldout_traffic WITH (security_barrier) AS
    SELECT id, created_at, policy, messages, prompt_hash, output
    FROM serving.response
    WHERE prompt_hash IS NOT NULL AND probe IS NULL AND status = 'ok'
        AND feedback.split_of(prompt_hash) = 'heldout';
"""

RETENTION = """
CREATE FUNCTION feedback.drop_months_before(moment timestamptz) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    part    record;
    dropped text[] := '{}';
    low     uuid := serving.uuid_floor(moment);
BEGIN
    IF moment > now() THEN
        RAISE EXCEPTION 'retention cannot end in the future: %', moment;
    END IF;
    FOR part IN
        SELECT space.nspname AS space, child.relname AS name
        FROM pg_inherits AS link
        JOIN pg_class AS child ON child.oid = link.inhrelid
        JOIN pg_namespace AS space ON space.oid = child.relnamespace
        WHERE link.inhparent IN ('serving.response'::regclass, 'feedback.feedback_event'::regclass)
          AND child.relname ~ '_[0-9]{4}_[0-9]{2}$'
          AND to_date(right(child.relname, 7), 'YYYY_MM') + interval '1 month' <= moment AT TIME ZONE 'UTC'
        ORDER BY child.relname
    LOOP
        EXECUTE format('DROP TABLE %I.%I', part.space, part.name);
        dropped := dropped || (part.space || '.' || part.name);
    END LOOP;
    DELETE FROM serving.response_other WHERE id < low;
    DELETE FROM feedback.feedback_event_other WHERE id < low;
    RETURN dropped;
END $$;
REVOKE ALL ON FUNCTION feedback.drop_months_before(timestamptz) FROM PUBLIC;

CREATE FUNCTION feedback.forget_user(person text, before timestamptz) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    counts  jsonb := '{}';
    touched text[];
    gone    bigint;
    low     uuid := serving.uuid_floor(before);
BEGIN
    IF coalesce(person, '') = '' THEN
        RAISE EXCEPTION 'no user was named';
    END IF;
    INSERT INTO feedback.forgotten AS known (user_hash, forgotten_at)
        VALUES (encode(sha256(convert_to(person, 'UTF8')), 'hex'), before)
        ON CONFLICT (user_hash)
        DO UPDATE SET forgotten_at = greatest(known.forgotten_at, EXCLUDED.forgotten_at);

    SELECT coalesce(array_agg(DISTINCT snapshot), '{}') INTO touched FROM (
        SELECT snapshot FROM feedback.preference_pair WHERE user_id = person AND created_at < before
        UNION SELECT snapshot FROM feedback.demonstration WHERE user_id = person AND created_at < before
    ) AS holding;
    UPDATE feedback.dataset_snapshot
        SET withdrawn_at = now(), withdrawn_reason = 'held data of a person who asked to be forgotten'
        WHERE digest = ANY (touched) AND withdrawn_at IS NULL;
    INSERT INTO feedback.policy_mark (policy, snapshot, reason)
        WITH RECURSIVE trained (ref, digest) AS (
            SELECT policy.ref, held.digest
            FROM registry.policy AS policy
            JOIN unnest(touched) AS held (digest) ON strpos(policy.provenance::text, held.digest) > 0
            UNION SELECT child.ref, trained.digest
            FROM registry.policy AS child JOIN trained ON child.parent = trained.ref)
        SELECT ref, digest, 'trained on data of a person who asked to be forgotten' FROM trained
        ON CONFLICT DO NOTHING;

    DELETE FROM feedback.preference_pair WHERE user_id = person AND created_at < before;
    GET DIAGNOSTICS gone = ROW_COUNT;
    counts := counts || jsonb_build_object('pairs', gone);
    DELETE FROM feedback.demonstration WHERE user_id = person AND created_at < before;
    GET DIAGNOSTICS gone = ROW_COUNT;
    counts := counts || jsonb_build_object('demonstrations', gone);
    DELETE FROM feedback.comparison WHERE user_id = person AND answered_at < before;
    GET DIAGNOSTICS gone = ROW_COUNT;
    counts := counts || jsonb_build_object('comparisons', gone);
    DELETE FROM feedback.sample_request WHERE response_id IN
        (SELECT id FROM serving.response WHERE user_id = person AND id < low);
    DELETE FROM feedback.feedback_event WHERE id < low AND (user_id = person OR response_id IN
        (SELECT id FROM serving.response WHERE user_id = person AND id < low));
    GET DIAGNOSTICS gone = ROW_COUNT;
    counts := counts || jsonb_build_object('events', gone);
    DELETE FROM serving.response WHERE user_id = person AND id < low;
    GET DIAGNOSTICS gone = ROW_COUNT;
    counts := counts || jsonb_build_object('responses', gone);
    RETURN counts || jsonb_build_object('snapshots', to_jsonb(touched), 'policies', (
        SELECT coalesce(jsonb_agg(DISTINCT policy), '[]') FROM feedback.policy_mark
        WHERE snapshot = ANY (touched)));
END $$;
REVOKE ALL ON FUNCTION feedback.forget_user(text, timestamptz) FROM PUBLIC;

CREATE FUNCTION feedback.forget_returned() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    back  record;
    found_again integer := 0;
BEGIN
    FOR back IN
        SELECT DISTINCT response.user_id, forgotten.forgotten_at
        FROM feedback.forgotten AS forgotten
        JOIN serving.response AS response
            ON response.id < serving.uuid_floor(forgotten.forgotten_at)
            AND response.id >= serving.uuid_floor(forgotten.forgotten_at - interval '7 days')
            AND forgotten.user_hash = encode(sha256(convert_to(response.user_id, 'UTF8')), 'hex')
        WHERE forgotten.forgotten_at > now() - interval '7 days' AND response.user_id IS NOT NULL
    LOOP
        PERFORM feedback.forget_user(back.user_id, back.forgotten_at);
        found_again := found_again + 1;
    END LOOP;
    RETURN found_again;
END $$;
REVOKE ALL ON FUNCTION feedback.forget_returned() FROM PUBLIC;
"""

ROW_SECURITY = """
ALTER TABLE feedback.comparison ENABLE ROW LEVEL SECURITY;
ALTER TABLE feedback.rating ENABLE ROW LEVEL SECURITY;
ALTER TABLE feedback.lease ENABLE ROW LEVEL SECURITY;

CREATE POLICY daily_work ON feedback.comparison TO ratchet_feedback USING (true);
CREATE POLICY daily_work ON feedback.rating TO ratchet_feedback USING (true);
CREATE POLICY daily_work ON feedback.lease TO ratchet_feedback USING (true);

CREATE POLICY all_rows ON feedback.comparison FOR SELECT TO ratchet_operator USING (true);
CREATE POLICY all_rows ON feedback.rating FOR SELECT TO ratchet_operator USING (true);
CREATE POLICY all_rows ON feedback.lease FOR SELECT TO ratchet_operator USING (true);

CREATE POLICY own_pool ON feedback.comparison FOR SELECT TO ratchet_evaluator USING (pool = 'evaluation');
CREATE POLICY own_pool_new ON feedback.comparison FOR INSERT TO ratchet_evaluator
    WITH CHECK (pool = 'evaluation' AND source = 'candidate');
CREATE POLICY own_pool ON feedback.rating FOR SELECT TO ratchet_evaluator USING (pool = 'evaluation');
"""

GRANTS = """
GRANT USAGE ON SCHEMA feedback TO
    ratchet_gateway, ratchet_feedback, ratchet_trainer, ratchet_evaluator, ratchet_operator, ratchet_report;

GRANT SELECT (key_id) ON serving.response TO ratchet_gateway;
GRANT SELECT (id, body_sha256) ON feedback.feedback_event TO ratchet_gateway;
GRANT INSERT (id, response_id, choice, origin, key_id, kind, value, text, name, other_response_id, user_id,
              body_sha256) ON feedback.feedback_event TO ratchet_gateway;
GRANT SELECT ON feedback.metric TO ratchet_gateway, ratchet_feedback, ratchet_operator, ratchet_report;

GRANT SELECT, INSERT, UPDATE, DELETE ON feedback.feedback_event, feedback.watermark, feedback.rater_token,
    feedback.comparison, feedback.lease, feedback.rating, feedback.sample_request TO ratchet_feedback;
GRANT SELECT, INSERT, DELETE ON feedback.imported_item, feedback.preference_pair, feedback.demonstration
    TO ratchet_feedback;
GRANT SELECT, INSERT, UPDATE ON feedback.dataset_snapshot, feedback.snapshot_build TO ratchet_feedback;
GRANT SELECT ON feedback.rater, feedback.heldout_prompt, feedback.policy_mark TO ratchet_feedback;
GRANT UPDATE (status, set_aside_at, set_aside_reason, guidelines_read_at) ON feedback.rater
    TO ratchet_feedback;

GRANT SELECT ON feedback.dataset_snapshot, feedback.policy_mark TO ratchet_trainer, ratchet_report;
GRANT SELECT (snapshot, position, split, prompt_hash, chosen_response_id, rejected_response_id, chosen_policy,
              rejected_policy, chosen_decode, rejected_decode, source, votes, weight, agreement, created_at)
    ON feedback.preference_pair TO ratchet_trainer;
GRANT SELECT (snapshot, position, split, prompt_hash, response_id, policy, decode, source, weight, created_at)
    ON feedback.demonstration TO ratchet_trainer;
GRANT SELECT ON feedback.snapshot_build TO ratchet_trainer;
GRANT INSERT (id, kind, request, requested_by) ON feedback.snapshot_build TO ratchet_trainer;

GRANT SELECT, INSERT ON feedback.heldout_prompt TO ratchet_evaluator;
GRANT SELECT ON feedback.heldout_traffic, feedback.rating TO ratchet_evaluator;
GRANT SELECT ON feedback.comparison TO ratchet_evaluator;
GRANT INSERT (id, pool, source, prompt, prompt_hash, history_hash, split, a_answer, a_text, a_policy,
              a_decode, b_answer, b_text, b_policy, b_decode, answered_at, names_policy, wanted)
    ON feedback.comparison TO ratchet_evaluator;

GRANT SELECT ON ALL TABLES IN SCHEMA feedback TO ratchet_operator;
GRANT INSERT ON feedback.rater, feedback.rater_token, feedback.metric, feedback.heldout_prompt
    TO ratchet_operator;
GRANT UPDATE (status, daily_quota, set_aside_at, set_aside_reason) ON feedback.rater TO ratchet_operator;
GRANT DELETE ON feedback.rater_token TO ratchet_operator;

GRANT EXECUTE ON FUNCTION feedback.ensure_event_partitions(integer), feedback.drop_months_before(timestamptz),
    feedback.forget_returned() TO ratchet_feedback;
GRANT EXECUTE ON FUNCTION feedback.ensure_event_partitions(integer), feedback.forget_user(text, timestamptz)
    TO ratchet_operator;
"""


def upgrade() -> None:
    """Adds the schema `feedback`, and lets the gateway see whose a response is."""
    for part in (EVENTS, RATING, DATASETS, RETENTION, ROW_SECURITY, GRANTS):
        op.execute(part)


def downgrade() -> None:
    """Removes the schema `feedback`."""
    op.execute("REVOKE SELECT (key_id) ON serving.response FROM ratchet_gateway")
    op.execute("DROP SCHEMA feedback CASCADE")
