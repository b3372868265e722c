"""Alembic migrations; `migrations.run.migrate` brings a database to the newest revision."""
