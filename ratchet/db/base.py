"""The declarative base, and the column types every module uses alike."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from sqlalchemy import DateTime, Text, Uuid, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

Moment = Annotated[datetime, mapped_column(DateTime(timezone=True))]
CreatedAt = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=func.now())]
Json = Annotated[dict[str, Any], mapped_column(JSONB)]
JsonList = Annotated[list[Any], mapped_column(JSONB)]
Key = Annotated[UUID, mapped_column(Uuid, primary_key=True)]


class Base(DeclarativeBase):
    """All rows of Ratchet; each module of `ratchet.db.models` owns one PostgreSQL schema."""

    type_annotation_map = {str: Text}  # noqa: RUF012
