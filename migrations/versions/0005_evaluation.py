"""Evaluation: judges and their calibrations, runs with answers, outcomes and verdicts, selection records.

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

JUDGES = """
CREATE SCHEMA evaluation;

CREATE TABLE evaluation.judge (
    ref        text PRIMARY KEY,
    number     bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    name       text NOT NULL,
    version    text NOT NULL,
    digest     text NOT NULL,
    artifact   text NOT NULL,
    endpoint   text NOT NULL CHECK (endpoint ~ '^[a-z0-9][a-z0-9-]*$'),
    model      text NOT NULL,
    templates  jsonb NOT NULL,
    parameters jsonb NOT NULL,
    provenance jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (name, digest),
    CHECK (ref = name || '@' || version),
    CHECK (version = left(digest, 12))
);
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON evaluation.judge
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();

CREATE TABLE evaluation.calibration (
    id            uuid PRIMARY KEY,
    judge         text NOT NULL REFERENCES evaluation.judge (ref),
    dimension     text NOT NULL,
    template      text NOT NULL,
    labels        text NOT NULL,
    labels_digest text NOT NULL,
    pairs         integer NOT NULL CHECK (pairs > 0),
    figures       jsonb NOT NULL,
    bar           jsonb NOT NULL,
    shortcomings  jsonb NOT NULL,
    passed        boolean NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (passed = (shortcomings = '[]'))
);
CREATE INDEX calibration_newest ON evaluation.calibration (judge, dimension, id DESC);
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON evaluation.calibration
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();
"""

RUNS = """
CREATE TABLE evaluation.eval_run (
    id            uuid PRIMARY KEY,
    round_id      uuid REFERENCES training.training_round (id),
    policies      jsonb NOT NULL,
    baseline      text NOT NULL REFERENCES registry.policy (ref),
    reference     text REFERENCES registry.policy (ref),
    judge         text REFERENCES evaluation.judge (ref),
    config        jsonb NOT NULL,
    config_digest text NOT NULL,
    state         text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'waiting', 'done', 'failed')),
    error         text,
    summary       jsonb,
    created_at    timestamptz NOT NULL DEFAULT now(),
    ended_at      timestamptz,
    CHECK ((state = 'failed') = (error IS NOT NULL)),
    CHECK ((state = 'done') = (summary IS NOT NULL)),
    CHECK ((state IN ('done', 'failed')) = (ended_at IS NOT NULL))
);
CREATE INDEX eval_run_round ON evaluation.eval_run (round_id, id DESC) WHERE round_id IS NOT NULL;

CREATE TABLE evaluation.item (
    run_id      uuid NOT NULL REFERENCES evaluation.eval_run (id),
    suite       text NOT NULL,
    item        text NOT NULL,
    position    integer NOT NULL,
    prompt_hash text NOT NULL,
    messages    jsonb NOT NULL,
    spec        jsonb NOT NULL,
    PRIMARY KEY (run_id, suite, item)
);

CREATE TABLE evaluation.answer (
    run_id        uuid NOT NULL,
    policy        text NOT NULL REFERENCES registry.policy (ref),
    suite         text NOT NULL,
    item          text NOT NULL,
    text          text NOT NULL,
    finish_reason text,
    tokens        integer CHECK (tokens >= 0),
    tool_calls    jsonb NOT NULL DEFAULT '[]',
    fingerprint   text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, policy, suite, item),
    FOREIGN KEY (run_id, suite, item) REFERENCES evaluation.item (run_id, suite, item)
);

CREATE TABLE evaluation.outcome (
    run_id  uuid NOT NULL REFERENCES evaluation.eval_run (id),
    policy  text NOT NULL REFERENCES registry.policy (ref),
    suite   text NOT NULL,
    metric  text NOT NULL,
    item    text NOT NULL,
    scorer  text NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('right', 'wrong', 'truncated', 'unscored')),
    reason  text NOT NULL,
    PRIMARY KEY (run_id, policy, metric, item)
);

CREATE TABLE evaluation.verdict (
    run_id           uuid NOT NULL,
    candidate        text NOT NULL REFERENCES registry.policy (ref),
    other            text NOT NULL REFERENCES registry.policy (ref),
    suite            text NOT NULL,
    item             text NOT NULL,
    source           text NOT NULL CHECK (source IN ('judge', 'raters')),
    dimension        text NOT NULL,
    prompt_hash      text NOT NULL,
    shown_first      text CHECK (shown_first IN ('first', 'second', 'tie')),
    shown_second     text CHECK (shown_second IN ('first', 'second', 'tie')),
    result           text CHECK (result IN ('win', 'tie', 'loss')),
    agreed           boolean,
    reason           text NOT NULL,
    candidate_length integer NOT NULL CHECK (candidate_length >= 0),
    other_length     integer NOT NULL CHECK (other_length >= 0),
    created_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, candidate, other, suite, item, source),
    FOREIGN KEY (run_id, suite, item) REFERENCES evaluation.item (run_id, suite, item),
    CHECK (candidate <> other),
    CHECK ((result IS NULL) = (agreed IS NULL))
);

CREATE TABLE evaluation.selection (
    id         uuid PRIMARY KEY,
    round_id   uuid NOT NULL REFERENCES training.training_round (id),
    run_id     uuid NOT NULL UNIQUE REFERENCES evaluation.eval_run (id),
    candidates jsonb NOT NULL,
    chosen     text REFERENCES registry.policy (ref),
    reason     text NOT NULL,
    record     jsonb NOT NULL,
    digest     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX selection_round ON evaluation.selection (round_id, id DESC);
CREATE INDEX selection_chosen ON evaluation.selection (chosen, id DESC) WHERE chosen IS NOT NULL;
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE ON evaluation.selection
    FOR EACH ROW EXECUTE FUNCTION registry.refuse_change();
"""

ENGINES = """
CREATE TABLE evaluation.engine_wish (
    id        uuid PRIMARY KEY,
    engine_id uuid NOT NULL REFERENCES registry.engine (id),
    put_up    boolean NOT NULL,
    wanted_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX engine_wish_engine ON evaluation.engine_wish (engine_id);

CREATE FUNCTION evaluation.lock_of_wish(wish uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog AS $$
    SELECT hashtextextended('evaluation.engine_wish ' || wish, 0)
$$;

CREATE FUNCTION evaluation.dismiss_engine(wish uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    gone integer;
    dropped record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('evaluation.want_engine'));
    DELETE FROM evaluation.engine_wish WHERE id = wish RETURNING engine_id, put_up INTO dropped;
    IF NOT FOUND OR NOT dropped.put_up
        OR EXISTS (SELECT FROM evaluation.engine_wish WHERE engine_id = dropped.engine_id) THEN
        RETURN false;
    END IF;
    UPDATE registry.engine AS e SET desired = 'down', updated_at = now()
        WHERE e.id = dropped.engine_id AND e.managed
            AND NOT EXISTS (SELECT FROM releases.release AS r WHERE r.ended_at IS NULL
                AND (r.engine_id = e.id OR e.policy IN (r.policy, r.baseline)))
            AND NOT EXISTS (SELECT FROM (
                SELECT DISTINCT ON (model) arms, fallback FROM serving.traffic_plan
                ORDER BY model, version DESC) AS plan
                WHERE plan.fallback = e.policy
                    OR plan.arms @> jsonb_build_array(jsonb_build_object('policy', e.policy)));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone > 0;
END $$;

CREATE FUNCTION evaluation.dismiss_dead_wishes() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    dead integer := 0;
    one uuid;
BEGIN
    FOR one IN SELECT id FROM evaluation.engine_wish LOOP
        IF pg_try_advisory_xact_lock(evaluation.lock_of_wish(one)) THEN
            PERFORM evaluation.dismiss_engine(one);
            dead := dead + 1;
        END IF;
    END LOOP;
    RETURN dead;
END $$;

CREATE FUNCTION evaluation.want_engine(wish uuid, fresh uuid, wanted text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    engine uuid;
    raised boolean := false;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('evaluation.want_engine'));
    SELECT id INTO engine FROM registry.engine WHERE policy = wanted AND desired = 'up'
        ORDER BY state = 'up' DESC, id DESC LIMIT 1;
    IF engine IS NULL THEN
        raised := true;
        UPDATE registry.engine
            SET desired = 'up', state = CASE state WHEN 'up' THEN 'up' ELSE 'waiting' END, updated_at = now()
            WHERE id = (SELECT id FROM registry.engine
                        WHERE policy = wanted AND managed ORDER BY id DESC LIMIT 1)
            RETURNING id INTO engine;
    END IF;
    IF engine IS NULL THEN
        INSERT INTO registry.engine (id, policy, managed, desired, state)
            VALUES (fresh, wanted, true, 'up', 'waiting') RETURNING id INTO engine;
    END IF;
    INSERT INTO evaluation.engine_wish (id, engine_id, put_up) VALUES (wish, engine, raised
        OR EXISTS (SELECT FROM evaluation.engine_wish AS w WHERE w.engine_id = engine AND w.put_up));
    RETURN engine;
END $$;
"""

BORDERS = """
CREATE FUNCTION evaluation.shared_with_reward_models(lineage text[], data text[], labelling text[])
RETURNS TABLE (reward_model text, kind text, name text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    WITH RECURSIVE above AS (
        SELECT m.ref AS model, p.ref, p.parent, p.name, p.weights_digest, p.digest, p.provenance
        FROM reward.reward_model AS m JOIN registry.policy AS p ON p.ref = m.parent
        UNION
        SELECT above.model, p.ref, p.parent, p.name, p.weights_digest, p.digest, p.provenance
        FROM above JOIN registry.policy AS p ON p.ref = above.parent
    ), named (model, kind, name) AS (
        SELECT ref, 'lineage', unnest(ARRAY[ref, digest, name]) FROM reward.reward_model
        UNION ALL SELECT model, 'lineage', unnest(ARRAY[ref, digest, weights_digest, name]) FROM above
        UNION ALL SELECT above.model, 'lineage', provenance ->> source.field FROM above,
            unnest(ARRAY['source', 'repo', 'repository', 'url', 'model', 'package']) AS source (field)
            WHERE provenance ? source.field
        UNION ALL SELECT ref, 'training data', snapshot FROM reward.reward_model
        UNION ALL SELECT model, 'training data', provenance ->> 'snapshot' FROM above
            WHERE provenance ? 'snapshot'
        UNION ALL SELECT made.ref, part.kind, told.name FROM (
                SELECT m.ref, m.provenance FROM reward.reward_model AS m
                UNION ALL SELECT above.model, above.provenance FROM above) AS made,
            (VALUES ('lineage', 'lineage'), ('training_data', 'training data'), ('labelling', 'labelling'))
                AS part (field, kind),
            jsonb_array_elements_text(CASE jsonb_typeof(made.provenance -> part.field) WHEN 'array'
                THEN made.provenance -> part.field ELSE '[]' END) AS told (name)
        UNION ALL SELECT m.ref, 'labelling', 'raters:preference' FROM reward.reward_model AS m
    )
    SELECT DISTINCT model, kind, name FROM named
    WHERE lower(name) = ANY (CASE kind WHEN 'lineage' THEN lineage WHEN 'training data' THEN data
                             ELSE labelling END)
    ORDER BY 1, 2, 3
$$;

CREATE VIEW evaluation.reward_of_selected WITH (security_barrier) AS
    SELECT s.id AS selection_id, c.round_id, c.step, c.policy, c.kl_k1, c.kl_k3, c.reward
    FROM evaluation.selection AS s JOIN training.checkpoint AS c ON c.round_id = s.round_id;
"""

FORGETTING = """
CREATE INDEX item_prompt ON evaluation.item (prompt_hash);

CREATE FUNCTION evaluation.forget_prompts() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    hashes text[];
    theirs text[];
    one record;
BEGIN
    SELECT array_agg(DISTINCT prompt_hash) INTO hashes FROM gone
        WHERE prompt_hash IS NOT NULL AND feedback.split_of(prompt_hash) = 'heldout';
    IF hashes IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT coalesce(array_agg(hash), '{}') INTO theirs FROM unnest(hashes) AS hash
        WHERE NOT EXISTS (
            SELECT FROM feedback.heldout_prompt WHERE prompt_hash = hash AND suite <> 'traffic');
    FOR one IN
        SELECT run_id, suite, item FROM evaluation.item
        WHERE prompt_hash = ANY (theirs) OR prompt_hash = ANY (hashes) AND spec ->> 'from' = 'traffic'
    LOOP
        DELETE FROM evaluation.verdict WHERE (run_id, suite, item) = (one.run_id, one.suite, one.item);
        DELETE FROM evaluation.outcome WHERE (run_id, suite, item) = (one.run_id, one.suite, one.item);
        DELETE FROM evaluation.answer WHERE (run_id, suite, item) = (one.run_id, one.suite, one.item);
        DELETE FROM feedback.comparison
            WHERE pool = 'evaluation' AND source = 'candidate' AND prompt_hash = ANY (hashes)
                AND starts_with(a_answer, format('evaluation:%s:%s:%s:', one.run_id, one.suite, one.item));
        DELETE FROM evaluation.item WHERE (run_id, suite, item) = (one.run_id, one.suite, one.item);
    END LOOP;
    DELETE FROM feedback.heldout_prompt WHERE suite = 'traffic' AND prompt_hash = ANY (hashes);
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION evaluation.forget_prompts() FROM PUBLIC;
CREATE TRIGGER forget_prompts AFTER DELETE ON serving.response
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION evaluation.forget_prompts();
"""

GRANTS = """
REVOKE ALL ON FUNCTION evaluation.want_engine(uuid, uuid, text), evaluation.dismiss_engine(uuid),
    evaluation.dismiss_dead_wishes(), evaluation.lock_of_wish(uuid),
    evaluation.shared_with_reward_models(text[], text[], text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION evaluation.want_engine(uuid, uuid, text), evaluation.dismiss_engine(uuid),
    evaluation.dismiss_dead_wishes(), evaluation.lock_of_wish(uuid),
    evaluation.shared_with_reward_models(text[], text[], text[]) TO ratchet_evaluator;

GRANT USAGE ON SCHEMA evaluation TO ratchet_evaluator, ratchet_operator, ratchet_report;
REVOKE SELECT, INSERT, UPDATE ON operations.alarm FROM ratchet_evaluator;
GRANT SELECT, INSERT ON evaluation.judge, evaluation.calibration, evaluation.item, evaluation.answer,
    evaluation.outcome, evaluation.selection TO ratchet_evaluator;
GRANT SELECT, INSERT, UPDATE ON evaluation.verdict TO ratchet_evaluator;
GRANT SELECT, INSERT, UPDATE (state, error, summary, ended_at) ON evaluation.eval_run TO ratchet_evaluator;

GRANT SELECT ON evaluation.judge, evaluation.calibration, evaluation.eval_run, evaluation.item,
    evaluation.answer, evaluation.outcome, evaluation.verdict, evaluation.selection, evaluation.engine_wish
    TO ratchet_operator;
GRANT SELECT ON evaluation.judge, evaluation.calibration, evaluation.eval_run, evaluation.item,
    evaluation.answer, evaluation.outcome, evaluation.verdict, evaluation.selection,
    evaluation.reward_of_selected TO ratchet_report;

REVOKE SELECT ON training.checkpoint, training.metric FROM ratchet_report;
GRANT SELECT (id, round_id, step, kl_k1, kl_k1_se, kl_k3, kl_k3_se, accuracy, length_quantiles, digest,
              policy, is_last, created_at)
    ON training.checkpoint TO ratchet_report;
"""


def upgrade() -> None:
    """Adds the schema `evaluation`; a report sees a round's rewards only once its selection is written."""
    for part in (JUDGES, RUNS, ENGINES, BORDERS, FORGETTING, GRANTS):
        op.execute(part)


def downgrade() -> None:
    """Removes the schema, and gives reports back what they read before."""
    op.execute("DROP SCHEMA evaluation CASCADE")
    op.execute("GRANT SELECT ON training.checkpoint, training.metric TO ratchet_report")
