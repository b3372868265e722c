"""`ratchet release`: bring a policy to production, watch it on its way, take it back."""

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.show import clear_screen, print_drill, print_history, print_status, print_step
from ratchet.account import account
from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.errors import UsageError
from ratchet.home import Home

if TYPE_CHECKING:
    from gateway.releases.audit import By
    from gateway.releases.control import Control

app = typer.Typer()
WATCH_EVERY_S = 2.0

Model = Annotated[
    str | None,
    typer.Argument(help="Whose release (default: the one that is open).", show_default=False),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the audit.")]


@app.command()
def start(
    policy: Annotated[
        str, typer.Argument(metavar="POLICY", help="NAME@VERSION, or NAME for its newest version.")
    ],
    plan: Annotated[
        str, typer.Option("--plan", metavar="FILE|NAME", help="Release plan: a TOML file, default or small.")
    ] = "default",
    engine_url: Annotated[
        str | None,
        typer.Option(help="An engine that serves it already (default: one is started).", show_default=False),
    ] = None,
    predicted: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON: metric to the effect that selection predicts, as estimate, low and high.",
            show_default=False,
        ),
    ] = None,
    override: Annotated[
        bool, typer.Option("--override", help="Release it though no selection chose it; the audit says so.")
    ] = False,
    reason: Reason = "a new version",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Start a release: shadow, then more and more users, then production."""
    from gateway.releases.machine import Wish
    from gateway.releases.plans import chosen_plan
    from gateway.releases.replication import read_predicted

    expected = read_predicted(predicted) if predicted else None
    wish = Wish(policy, chosen_plan(plan), engine_url, expected, override)
    with _control(data_dir) as control:
        emit(control.start(wish, _by(reason)), as_json, print_step)


@app.command()
def status(
    model: Annotated[
        str | None, typer.Argument(help="Whose release (default: all).", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until it is over.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show where releases stand, and what their last look saw."""
    if watch and as_json:
        raise UsageError("--json prints one document: leave --watch out")
    with _control(data_dir) as control:
        while True:
            found = [control.status(model)] if model else control.everything()
            if watch:
                clear_screen()
            emit(found[0] if model else found, as_json, print_status)
            if not watch or all(release["ended_at"] for release in found):
                return
            time.sleep(WATCH_EVERY_S)


@app.command()
def promote(
    model: Model = None,
    to_end: Annotated[bool, typer.Option("--to-production", help="Skip the stages between.")] = False,
    reason: Reason = "promoted by hand",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Go on to the next stage without waiting for the figures."""
    with _control(data_dir) as control:
        name = _open_model(control, model)
        emit(control.promote(name, _by(reason), to_end=to_end), as_json, print_step)


@app.command()
def pause(
    model: Model = None, reason: Reason = "paused by hand", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Keep the shares as they are; harm still aborts."""
    with _control(data_dir) as control:
        emit(control.pause(_open_model(control, model), _by(reason)), as_json, print_step)


@app.command()
def resume(
    model: Model = None, reason: Reason = "resumed by hand", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Let a paused release go on."""
    with _control(data_dir) as control:
        emit(control.resume(_open_model(control, model), _by(reason)), as_json, print_step)


@app.command()
def abort(
    model: Model = None,
    cut: Annotated[
        bool, typer.Option("--cut", help="End answers of the bad policy that are under way with an error.")
    ] = False,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Throw the switch of this machine's gateways; needs no database."),
    ] = False,
    reason: Reason = "aborted by hand",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send all traffic back to the last good policy, from any stage and after promotion too."""
    if offline:
        from dataclasses import asdict

        from gateway.switch import is_followed, throw

        if model is None:
            raise UsageError("--offline cannot ask which release is open: name the model")
        home = Home.resolve(data_dir)
        if not home.root.is_dir():
            raise UsageError(f"no gateway follows {home.switch}: there is no data folder {home.root}")
        thrown = throw(home.switch, model, reason, cut=cut)
        if not is_followed(home.switch, thrown):
            raise UsageError(
                f"no gateway follows {home.switch}, or none that does serves {model};"
                f" {thrown.id}.json is left there for one that comes"
            )
        emit(
            asdict(thrown),
            as_json,
            lambda told: typer.echo(f"the gateways here have taken {told['model']} back"),
        )
        return
    with _control(data_dir) as control:
        emit(control.abort(_open_model(control, model), _by(reason), cut=cut), as_json, print_step)


@app.command()
def close(
    model: Model = None, reason: Reason = "closed by hand", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """End a release that was promoted: the previous policy's engine may go."""
    with _control(data_dir) as control:
        emit(control.close(_open_model(control, model), _by(reason)), as_json, print_step)


@app.command()
def history(
    model: Annotated[
        str | None, typer.Argument(help="Whose releases (default: all).", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List releases, the newest first, each with its audit."""
    with _control(data_dir) as control:
        emit(control.history(model), as_json, print_history)


@app.command()
def drill(
    model: Annotated[str, typer.Argument(help="Whose switch is pulled.")],
    other: Annotated[
        str | None,
        typer.Option("--to", metavar="REF", help="Policy to switch to (default: the one in production)."),
    ] = None,
    switches: Annotated[int, typer.Option(min=1, max=1000, help="How often, there and back.")] = 10,
    gateway_url: Annotated[
        str | None,
        typer.Option(help="Where clients ask (default: the stack of this data folder).", show_default=False),
    ] = None,
    reason: Reason = "a drill",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Pull the abort switch on live traffic and undo it, and store how long it took."""
    from gateway.releases.drill import run_drill
    from ratchet.commands.operator import operator_engine

    home = Home.resolve(data_dir)
    url = gateway_url or _address(home)
    with operator_engine(home) as engine:
        done = run_drill(engine, model, _by(reason), url, other=other, switches=switches)
    emit(done, as_json, print_drill)
    if done["state"] != "good":
        raise typer.Exit(1)


@contextmanager
def _control(data_dir: Path | None) -> Generator["Control"]:
    from gateway.releases.control import Control
    from ratchet.commands.operator import operator_engine

    with operator_engine(Home.resolve(data_dir)) as engine:
        yield Control(engine)


def _by(reason: str) -> "By":
    from gateway.releases.audit import By

    return By(f"{account()}@{socket.gethostname()}", reason)


def _open_model(control: "Control", model: str | None) -> str:
    if model is not None:
        return model
    names: list[Any] = [told["model"] for told in control.everything() if told["ended_at"] is None]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError("no release is open; `ratchet release history` lists those that were")
    raise UsageError(f"{len(names)} releases are open: name one of {', '.join(names)}")


def _address(home: Home) -> str:
    from ratchet.supervisor.state import load

    state = load(home)
    if state is None:
        raise UsageError(f"no stack runs on {home.root}: give --gateway-url of the one that clients ask")
    return state.addresses["gateway"]
