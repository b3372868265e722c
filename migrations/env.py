"""Alembic's entry: migrates the connection that `migrations.run` hands over."""

from alembic import context

from ratchet.db.base import Base
from ratchet.db.models import feedback, operations, registry, serving

_ = (feedback, operations, registry, serving)

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    include_schemas=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
