"""Releases as the command line shows them to people."""

from typing import Any

import typer
from rich.console import Console
from rich.table import Table

Document = dict[str, Any]


def clear_screen() -> None:
    """Begins anew at the top of the terminal."""
    Console().clear()


def print_step(release: Document) -> None:
    """One line: where a release stands now."""
    shares = ", ".join(f"{arm['policy']} {arm['share']:.0%} ({arm['arm']})" for arm in release["shares"])
    typer.echo(f"{release['policy']} is {release['state']} at {release['stage']}: {shares}")


def print_status(found: Document | list[Document]) -> None:
    """Each release with the figures of its last look."""
    releases = found if isinstance(found, list) else [found]
    if not releases:
        typer.echo("no releases; `ratchet release start POLICY` begins one")
    for release in releases:
        _print_release(release)


def print_history(releases: list[Document]) -> None:
    """Each release with its audit."""
    if not releases:
        typer.echo("no releases")
    for release in releases:
        typer.echo(
            f"{release['started_at']:%Y-%m-%d %H:%M}  {release['policy']} over {release['baseline']}:"
            f" {release['state']}"
        )
        for event in release["events"]:
            typer.echo(f"    {event['at']:%H:%M:%S}  {event['kind']}  by {event['actor']}: {event['reason']}")
        observed: Document = release["observed"] or {"gaps": []}
        for gap in observed["gaps"]:
            typer.echo(f"    ! {gap}")


def print_drill(drill: Document) -> None:
    """What a drill saw."""
    if drill["state"] == "good":
        typer.echo(
            f"good: {drill['switches']} times there and back; back within {drill['back_p50_ms']:.0f} ms"
            f" (median), {drill['back_p99_ms']:.0f} ms (99 %), seen in {drill['requests']} requests"
        )
    else:
        facts = {name: drill.get(name) for name in ("missed", "failed", "back_p99_ms", "trouble")}
        typer.echo("bad: " + ", ".join(f"{name} {value}" for name, value in facts.items() if value))


def _print_release(release: Document) -> None:
    if release["overridden"]:
        typer.echo("! no selection chose this policy: it was released by an operator's --override")
    print_step(release)
    since = f"{release['since']:%Y-%m-%d %H:%M:%S} UTC"
    typer.echo(f"  plan {release['plan']}, over {release['baseline']}, since {since}")
    look = release["look"]
    if look is None:
        typer.echo(f"  {release['waits_for'] or 'not looked at yet'}")
        return
    typer.echo(f"  look {look['number']}: {look['decision']}: {look['reason']}")
    table = Table(box=None, header_style="bold", padding=(0, 2))
    for heading in ("metric", "n (old, new)", "old", "new", "worse by", "interval", "decision"):
        table.add_column(heading, no_wrap=heading == "metric")
    for metric in look["metrics"]:
        interval = f"[{_share(metric['low'])}, {_share(metric['high'])}]"
        table.add_row(
            metric["metric"],
            f"{metric['n_baseline']}, {metric['n_candidate']}",
            _figure(metric["baseline"]),
            _figure(metric["candidate"]),
            _share(metric["estimate"]),
            interval,
            metric["decision"],
        )
    Console().print(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
