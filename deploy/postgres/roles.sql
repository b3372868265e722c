-- The roles of Ratchet for a PostgreSQL of your own, before `python -m migrations` runs there.
--
-- Run it in the database Ratchet shall use, as a superuser or as the administrator of a managed PostgreSQL (who
-- owns that database and may create roles). Each password is a setting of the session, so that it stands in no
-- statement and in no log:
--
--   PGOPTIONS="-c ratchet.owner_password=... -c ratchet.gateway_password=... -c ratchet.feedback_password=...
--     -c ratchet.trainer_password=... -c ratchet.evaluator_password=... -c ratchet.operator_password=...
--     -c ratchet.report_password=..." psql "$ADMIN_URL" -v ON_ERROR_STOP=1 -f deploy/postgres/roles.sql
--
-- Run again with other passwords, it changes them. The grants stand in the migrations, beside their tables.

SET password_encryption = 'scram-sha-256';

DO $$
DECLARE
    service   text;
    role_name text;
BEGIN
    FOREACH service IN ARRAY ARRAY['owner', 'gateway', 'feedback', 'trainer', 'evaluator', 'operator', 'report']
    LOOP
        role_name := 'ratchet_' || service;
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOINHERIT', role_name);
        END IF;
        EXECUTE format('ALTER ROLE %I LOGIN PASSWORD %L', role_name,
                       current_setting('ratchet.' || service || '_password'));
    END LOOP;
    EXECUTE format('GRANT ratchet_owner TO %I', current_user);
    EXECUTE format('ALTER DATABASE %I OWNER TO ratchet_owner', current_database());
END $$;
