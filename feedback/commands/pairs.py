"""`ratchet pairs`: freeze, look at, export and import preference data."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedback.lengths import DEFAULT_BOUND
from feedback.rows import Kind, Source
from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home

if TYPE_CHECKING:
    from feedback.pairing import BuildRequest, Built

app = typer.Typer()

KindOption = Annotated[Kind, typer.Option(help="pairs, or demonstrations (edits and imports) for SFT.")]
PolicyOption = Annotated[
    str | None,
    typer.Option(help="current, lineage, a policy's NAME (all versions) or NAME@VERSION (default: all)."),
]
ModelOption = Annotated[
    str | None, typer.Option(help="Model whose policy is current, where several are served.")
]
DistanceOption = Annotated[int | None, typer.Option(min=0, help="With --policy lineage: steps back at most.")]
MatchOption = Annotated[str, typer.Option(help="both or either: which sides the policy must have spoken.")]
SinceOption = Annotated[
    str | None, typer.Option(help="Said no longer ago (12h, 14d, 8w) or after a time (ISO 8601, UTC).")
]
UntilOption = Annotated[str | None, typer.Option(help="Said longer ago, or before a time.")]
SourceOption = Annotated[list[Source] | None, typer.Option(help="Only this source; may be repeated.")]
VotesOption = Annotated[int, typer.Option(min=1, help="Votes a comparison needs.")]
AgreementOption = Annotated[float, typer.Option(min=0.5, max=1, help="Share of votes the winner needs.")]
CapOption = Annotated[int | None, typer.Option(min=1, help="Rows one end user may give.")]


class FileFormat(StrEnum):
    """File formats, as `feedback.formats` has them."""

    TRL = "trl"
    OPENAI = "openai"
    HH = "hh"
    PARQUET = "parquet"


@app.command()
def build(
    kind: KindOption = Kind.PAIRS,
    policy: PolicyOption = None,
    model: ModelOption = None,
    max_distance: DistanceOption = None,
    policy_match: MatchOption = "both",
    since: SinceOption = None,
    until: UntilOption = None,
    source: SourceOption = None,
    min_votes: VotesOption = 1,
    min_agreement: AgreementOption = 0.6,
    max_per_user: CapOption = None,
    length_bound: Annotated[
        float, typer.Option(min=0.5, max=1, help="Share of wins of the longer answer that raises a warning.")
    ] = DEFAULT_BOUND,
    mask: Annotated[
        bool, typer.Option("--mask", help="Mask personal data in the answers, not only on export.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Freeze a data set: Parquet files and a manifest, named by the digest of their rows."""
    from feedback.commands.connection import engine_as
    from feedback.pairing import build_snapshot
    from feedback.privacy import Masker
    from ratchet.db.roles import Role

    request = _request(
        kind, policy, model, max_distance, policy_match, since, until, source, min_votes, min_agreement,
        max_per_user, length_bound,
    )  # fmt: skip
    with engine_as(Role.FEEDBACK, data_dir) as engine:
        built = build_snapshot(
            engine,
            Home.resolve(data_dir).snapshots,
            request,
            now=datetime.now(UTC),
            masker=Masker() if mask else None,
        )
    emit(document_of(built), as_json, _print_built)


@app.command()
def ledger(
    kind: KindOption = Kind.PAIRS,
    policy: PolicyOption = None,
    model: ModelOption = None,
    max_distance: DistanceOption = None,
    policy_match: MatchOption = "both",
    since: SinceOption = None,
    until: UntilOption = None,
    source: SourceOption = None,
    min_votes: VotesOption = 1,
    min_agreement: AgreementOption = 0.6,
    max_per_user: CapOption = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What becomes of every vote, signal and import under a filter: used, held out, or left out and why."""
    from feedback.commands.connection import engine_as
    from feedback.pairing import read_ledger
    from ratchet.db.roles import Role

    request = _request(
        kind, policy, model, max_distance, policy_match, since, until, source, min_votes, min_agreement,
        max_per_user, DEFAULT_BOUND,
    )  # fmt: skip
    with engine_as(Role.FEEDBACK, data_dir) as engine:
        found = read_ledger(engine, request)
    emit(found, as_json, _print_ledger)


@app.command("list")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List snapshots, the newest first."""
    from feedback.commands.connection import engine_as
    from feedback.registry import list_snapshots
    from ratchet.db.roles import Role

    with engine_as(Role.FEEDBACK, data_dir) as engine:
        snapshots = list_snapshots(engine)
    emit(snapshots, as_json, _print_snapshots)


@app.command()
def stats(
    snapshot: Annotated[
        str | None, typer.Argument(help="A snapshot's digest or its beginning (default: the ratings).")
    ] = None,
    pool: Annotated[str, typer.Option(help="preference or evaluation: whose ratings.")] = "preference",
    since: SinceOption = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Numbers about a snapshot, or about ratings: agreement, policies ranked, what is waiting."""
    from feedback.commands.connection import engine_as
    from feedback.registry import find_snapshot
    from feedback.reports import statistics
    from feedback.repository import Window
    from ratchet.db.roles import Role
    from ratchet.errors import UsageError

    if pool not in ("preference", "evaluation"):
        raise UsageError(f"--pool is preference or evaluation, not {pool!r}")
    with engine_as(Role.FEEDBACK, data_dir) as engine:
        if snapshot is None:
            document = statistics(engine, pool, Window(_moment(since)))
        else:
            document = find_snapshot(engine, snapshot).manifest.model_dump(mode="json")
    emit(document, as_json, _print_document)


@app.command()
def export(
    snapshot: Annotated[str, typer.Argument(help="A snapshot's digest, or its beginning.")],
    format: Annotated[FileFormat, typer.Option(help="What to write.")],
    out: Annotated[Path, typer.Option(help="The file; a name ending in .gz is gzipped.")],
    part: Annotated[str, typer.Option(help="train, validation, or all.")] = "all",
    provenance: Annotated[
        bool, typer.Option("--provenance/--no-provenance", help="Tell ids, policies and all other columns.")
    ] = True,
    mask: Annotated[
        bool, typer.Option("--mask/--no-mask", help="Mask personal data in prompts and answers.")
    ] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a snapshot's rows as a file that others read; personal data is masked."""
    from feedback.commands.connection import engine_as
    from feedback.export import export_snapshot
    from feedback.formats import Format
    from feedback.registry import find_snapshot
    from ratchet.db.roles import Role

    with engine_as(Role.FEEDBACK, data_dir) as engine:
        found = find_snapshot(engine, snapshot)
    written = export_snapshot(found, Format(format.value), out, part=part, provenance=provenance, mask=mask)
    emit(written, as_json, _print_document)


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="The file; JSON lines may be gzipped.")],
    format: Annotated[FileFormat, typer.Option(help="What it is.")],
    name: Annotated[str, typer.Option(help="Name of the data, which stands in place of a policy.")],
    kind: KindOption = Kind.PAIRS,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Read a data set; refused whole, with the list, where it speaks of held-out prompts."""
    from feedback.commands.connection import engine_as
    from feedback.formats import Format
    from feedback.imports import import_file
    from ratchet.db.roles import Role

    with engine_as(Role.FEEDBACK, data_dir) as engine:
        report = import_file(engine, path, Format(format.value), kind, name=name)
    emit({"name": name, "kind": kind.value, **report.content()}, as_json, _print_document)


def document_of(built: "Built") -> dict[str, Any]:
    """A build as JSON: snapshot, digest, path, pairs, by_policy, dropped, length_report and the rest."""
    from ratchet.canonical import short

    manifest = built.snapshot.manifest
    return {
        "snapshot": short(manifest.digest),
        "digest": manifest.digest,
        "path": str(built.snapshot.path),
        "kind": manifest.kind.value,
        "pairs": manifest.rows,
        "by_split": {part.value: rows for part, rows in manifest.by_split.items()},
        "by_policy": manifest.by_policy,
        "by_source": manifest.by_source,
        "dropped": manifest.dropped,
        "length_report": manifest.lengths,
        "staleness": built.staleness,
        "ledger": built.ledger,
        "filter": manifest.filter,
    }


def _request(
    kind: Kind, policy: str | None, model: str | None, max_distance: int | None, policy_match: str,
    since: str | None, until: str | None, source: list[Source] | None, min_votes: int, min_agreement: float,
    max_per_user: int | None, length_bound: float,
) -> "BuildRequest":  # fmt: skip
    from feedback.pairing import BuildRequest
    from ratchet.errors import UsageError

    if policy_match not in ("both", "either"):
        raise UsageError(f"--policy-match is both or either, not {policy_match!r}")
    return BuildRequest(
        kind=kind,
        policy=policy,
        model=model,
        max_distance=max_distance,
        policy_match=policy_match,
        since=_moment(since),
        until=_moment(until),
        sources=tuple(source) if source else None,
        min_votes=min_votes,
        min_agreement=min_agreement,
        max_per_user=max_per_user,
        length_bound=length_bound,
    )


def _moment(text: str | None) -> datetime | None:
    from ratchet.commands.responses import moment

    return None if text is None else moment(text, now=datetime.now(UTC))


def _print_built(document: dict[str, Any]) -> None:
    typer.echo(
        f"snapshot {document['snapshot']}: {document['pairs']} {document['kind']} in {document['path']}"
    )
    _print_document({key: document[key] for key in ("by_split", "by_policy", "by_source", "dropped")})
    report: dict[str, list[str]] = document["length_report"] or {}
    for warning in report.get("warnings", []):
        typer.echo(f"warning: {warning}", err=True)


def _print_ledger(document: dict[str, Any]) -> None:
    typer.echo(
        f"{document['data']} data: {document['used']} used, {document['held_out']} held out,"
        f" {sum(document['left_out'].values())} left out"
    )
    for reason, number in document["left_out"].items():
        typer.echo(f"  {reason}: {number}")


def _print_snapshots(snapshots: list[dict[str, Any]]) -> None:
    for snapshot in snapshots:
        mark = " withdrawn" if snapshot["withdrawn"] else ""
        typer.echo(
            f"{snapshot['digest'][:12]}  {snapshot['created']}  {snapshot['rows']} {snapshot['kind']}{mark}"
        )


def _print_document(document: dict[str, Any]) -> None:
    from rich.pretty import pprint

    pprint(document, expand_all=False)
