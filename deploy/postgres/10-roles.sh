#!/bin/sh
# Runs once, when the postgres image makes its cluster: the roles, with the passwords of the environment.
set -eu
options=""
for service in owner gateway feedback trainer evaluator operator report; do
    name="RATCHET_$(echo "$service" | tr '[:lower:]' '[:upper:]')_PASSWORD"
    options="$options -c ratchet.${service}_password=$(printenv "$name")"
done
PGOPTIONS="$options" psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" -f /ratchet/roles.sql
