"""Forgetting a person: their rows go, the snapshots that held them are withdrawn, and their files removed."""

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from ratchet.db.engine import session_scope
from ratchet.errors import UsageError

_FORGET = text("SELECT feedback.forget_user(:person, :now)")
_PATHS = text("SELECT digest, path FROM feedback.dataset_snapshot WHERE withdrawn_at IS NOT NULL")


def forget_user(engine: Engine, person: str, *, now: datetime, keep_files: bool = False) -> dict[str, Any]:
    """Removes a person's prompts, answers, events and pairs, and marks what was made of them.

    What still arrives from before that time, such as from a gateway's spool, is removed by the reconcile, for
    seven days.

    Args:
        engine: As the role `ratchet_operator`.
        person: The user as clients named them.
        now: What came before is removed.
        keep_files: Leaves the files of withdrawn snapshots; by default they are removed, since they hold the
            person's words.

    Returns:
        Counts of removed rows, the withdrawn snapshots, the marked policies, and the removed folders.

    Raises:
        UsageError: No person was named.
    """
    if not person:
        raise UsageError("say whom to forget: --user ID, as clients name their users")
    with session_scope(engine) as session:
        report: dict[str, Any] = session.execute(_FORGET, {"person": person, "now": now}).scalar_one()
    report["removed_folders"] = [] if keep_files else remove_withdrawn(engine)
    return report


def remove_withdrawn(engine: Engine) -> list[str]:
    """Removes the folders of all withdrawn snapshots that are still there."""
    with session_scope(engine) as session:
        withdrawn = [(row.digest, Path(row.path)) for row in session.execute(_PATHS)]
    there = [path for digest, path in withdrawn if path.name == digest and path.is_dir()]
    for path in there:
        shutil.rmtree(path)
    return [str(path) for path in there]
