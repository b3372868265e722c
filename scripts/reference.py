"""Writes the reference tables in docs/ anew from the code: settings, rounds, metrics, grants (`make docs`).

Each table stands between `<!-- reference: NAME -->` and `<!-- end of reference -->`.
"""

import ast
import inspect
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import psycopg
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from evaluator.settings import EvaluatorSettings
from feedback.settings import FeedbackSettings
from gateway.releases.settings import ReleaseSettings
from ratchet.db.roles import SERVICE_ROLES
from ratchet.settings import GatewaySettings, Process, WorkerSettings
from ratchet.supervisor.settings import SupervisorSettings
from ratchet.telemetry import INSTRUMENTS
from trainer.config import RoundConfig
from trainer.settings import TrainerSettings

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"<!-- reference: (?P<name>[\w-]+) -->\n.*?<!-- end of reference -->", re.DOTALL)

GRANTS = """
SELECT n.nspname || '.' || c.relname, r.rolname, a.privilege_type, false
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
     aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
WHERE c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
UNION
SELECT n.nspname || '.' || c.relname, r.rolname, a.privilege_type, true
FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace,
     aclexplode(t.attacl) a JOIN pg_roles r ON r.oid = a.grantee
WHERE NOT c.relispartition
UNION
SELECT n.nspname || '.' || p.proname || '()', r.rolname, a.privilege_type, false
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace,
     aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
"""
WORDS = {"SELECT": "reads", "INSERT": "adds", "UPDATE": "changes", "DELETE": "removes", "EXECUTE": "calls"}


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["-"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def settings_table(kind: type[BaseSettings]) -> str:
    """The settings a class adds to those it inherits: variable, default, meaning."""
    said = field_docstrings(kind)
    own = {name: field for name, field in kind.model_fields.items() if name in said}
    rows = [[f"`RATCHET_{name.upper()}`", default_of(field), said[name]] for name, field in own.items()]
    return table(["Variable", "Default", "Meaning"], rows)


def round_table() -> str:
    """Every key of a round's configuration, dotted: default, meaning."""
    rows: list[list[str]] = []
    for name, field in RoundConfig.model_fields.items():
        section = next(iter(_models(field.annotation)), None)
        if section is None:
            rows.append([f"`{name}`", default_of(field), field.description or ""])
            continue
        absent = " (section absent)" if field.get_default() is None else ""
        rows += [
            [f"`{name}.{key}`", default_of(each) + absent, each.description or ""]
            for key, each in section.model_fields.items()
        ]
    return table(["Key", "Default", "Meaning"], [[cell.replace("\n", " ") for cell in row] for row in rows])


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [
        each
        for each in (annotation, *get_args(annotation))
        if isinstance(each, type) and issubclass(each, BaseModel)
    ]


def field_docstrings(kind: type[BaseSettings]) -> dict[str, str]:
    """The text under each field that the class itself defines, on one line."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr)
            assert isinstance(text.value, ast.Constant)
            texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def default_of(field: FieldInfo) -> str:
    """A default as it would be written in the environment."""
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    return f"`{value}`"


def metrics_table() -> str:
    """Every metric: name, kind, unit, meaning."""
    rows = [
        [f"`{name}`", str(instrument.kind), instrument.unit, instrument.description]
        for name, instrument in INSTRUMENTS.items()
    ]
    return table(["Metric", "Kind", "Unit", "Meaning"], rows)


def grants_table(owner_url: str) -> str:
    """What each service's role may do with each table and function, as a migrated database itself says.

    A star says: with some columns only.
    """
    may: dict[str, dict[str, dict[str, bool]]] = defaultdict(lambda: defaultdict(dict))
    with psycopg.connect(owner_url) as connection:
        for thing, role, privilege, partly in connection.execute(GRANTS):
            if role not in SERVICE_ROLES:
                continue
            word = WORDS[privilege]
            may[thing][role][word] = partly and may[thing][role].get(word, True)

    def cell(words: dict[str, bool]) -> str:
        return ", ".join(word + "\\*" * words[word] for word in WORDS.values() if word in words)

    rows = [
        [f"`{thing}`", *(cell(roles.get(role.value, {})) for role in SERVICE_ROLES)]
        for thing, roles in sorted(may.items())
    ]
    return table(["", *(role.service for role in SERVICE_ROLES)], rows)


def references(owner_url: str) -> dict[str, Callable[[], str]]:
    """Name of each reference to what renders it.

    Args:
        owner_url: Address of a migrated database.
    """
    return {
        "settings-process": lambda: settings_table(Process),
        "settings-gateway": lambda: settings_table(GatewaySettings),
        "settings-worker": lambda: settings_table(WorkerSettings),
        "settings-feedback": lambda: settings_table(FeedbackSettings),
        "settings-evaluator": lambda: settings_table(EvaluatorSettings),
        "settings-trainer": lambda: settings_table(TrainerSettings),
        "round-config": round_table,
        "settings-release": lambda: settings_table(ReleaseSettings),
        "settings-up": lambda: settings_table(SupervisorSettings),
        "metrics": metrics_table,
        "grants": lambda: grants_table(owner_url),
    }


def rendered(text: str, known: dict[str, Callable[[], str]]) -> str:
    """A document with each of its references written anew."""

    def anew(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- reference: {name} -->\n\n{known[name]()}\n\n<!-- end of reference -->"

    return MARKED.sub(anew, text)


def main() -> None:
    """Migrates a database of its own and writes every document that holds a reference."""
    from migrations.run import migrate
    from ratchet.embedded import EmbeddedPostgres

    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(
            Path(folder) / "postgres", Path(folder) / "password", settings=("fsync=off",)
        )
        server.start()
        try:
            migrate(server.owner_url)
            known = references(server.owner_url)
            for path in sorted(ROOT.glob("docs/**/*.md")):
                text = path.read_text("utf-8")
                new = rendered(text, known)
                if new != text:
                    path.write_text(new, "utf-8")
                    sys.stdout.write(f"{path.relative_to(ROOT)} written anew\n")
        finally:
            server.stop(immediate=True)


if __name__ == "__main__":
    main()
