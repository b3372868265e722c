"""The loop: one turn from a snapshot of pairs to a released policy, step by step, each step its owner's.

Revision ID: 0006
Revises: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

LOOP = """
CREATE TABLE operations.loop (
    id          uuid PRIMARY KEY,
    model       text NOT NULL,
    policy      text NOT NULL REFERENCES registry.policy (ref),
    method      text NOT NULL,
    wish        jsonb NOT NULL,
    asked_by    text NOT NULL,
    reason      text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    stopped_at  timestamptz,
    stopped_by  text,
    stop_reason text,
    CHECK ((stopped_at IS NULL) = (stopped_by IS NULL))
);

CREATE TABLE operations.loop_step (
    loop_id    uuid NOT NULL REFERENCES operations.loop (id),
    step       text NOT NULL CHECK (step IN ('snapshot', 'train', 'select', 'release')),
    place      integer NOT NULL,
    state      text NOT NULL DEFAULT 'waiting'
               CHECK (state IN ('waiting', 'running', 'done', 'skipped', 'failed', 'stopped')),
    subject    text,
    detail     jsonb NOT NULL DEFAULT '{}',
    error      text,
    tries      integer NOT NULL DEFAULT 0,
    started_at timestamptz,
    ended_at   timestamptz,
    PRIMARY KEY (loop_id, step),
    UNIQUE (loop_id, place),
    CHECK ((state = 'failed') = (error IS NOT NULL)),
    CHECK ((state IN ('waiting', 'running')) = (ended_at IS NULL))
);
CREATE INDEX loop_step_open ON operations.loop_step (step) WHERE state IN ('waiting', 'running');
"""

RELEASES = """
ALTER TABLE releases.release
    ADD COLUMN selection_id uuid REFERENCES evaluation.selection (id),
    ADD COLUMN overridden boolean NOT NULL DEFAULT false,
    ADD CHECK (overridden OR selection_id IS NOT NULL);
"""

BORDERS = """
GRANT SELECT ON operations.loop, operations.loop_step TO
    ratchet_feedback, ratchet_trainer, ratchet_evaluator, ratchet_operator, ratchet_report;
GRANT INSERT ON operations.loop, operations.loop_step TO ratchet_operator;
GRANT UPDATE (stopped_at, stopped_by, stop_reason) ON operations.loop TO ratchet_operator;
GRANT UPDATE (state, subject, detail, error, tries, started_at, ended_at) ON operations.loop_step TO
    ratchet_feedback, ratchet_trainer, ratchet_evaluator, ratchet_operator;

ALTER TABLE operations.loop_step ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON operations.loop_step FOR SELECT USING (true);
CREATE POLICY asked ON operations.loop_step FOR INSERT TO ratchet_operator WITH CHECK (true);
CREATE POLICY every_step ON operations.loop_step FOR UPDATE TO ratchet_operator USING (true);
CREATE POLICY own_step ON operations.loop_step FOR UPDATE TO ratchet_feedback USING (step = 'snapshot');
CREATE POLICY own_step_of_trainer ON operations.loop_step FOR UPDATE TO ratchet_trainer
    USING (step = 'train');
CREATE POLICY own_step_of_evaluator ON operations.loop_step FOR UPDATE TO ratchet_evaluator
    USING (step = 'select');
"""


def upgrade() -> None:
    """Adds both tables, a service changes its own step alone; a release names the selection it rests on."""
    op.execute(LOOP)
    op.execute(RELEASES)
    op.execute(BORDERS)


def downgrade() -> None:
    """Removes them."""
    op.execute("ALTER TABLE releases.release DROP COLUMN selection_id, DROP COLUMN overridden")
    op.execute("DROP TABLE operations.loop_step, operations.loop")
