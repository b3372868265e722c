"""`ratchet train`: a round here and now, and the plan before it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home
from trainer.commands.plan import command as plan

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from trainer.config import Method
    from trainer.rounds.asking import Prepared
    from trainer.rounds.conduct import Ended

app = typer.Typer()
app.command("plan")(plan)

ConfigOption = Annotated[Path, typer.Option("--config", help="TOML file of the round (see deploy/training).")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Over the file; the key is dotted.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        help="Policy to train on: NAME@VERSION, NAME (newest), current, or current:MODEL (default: the "
        "file's `model` folder).",
        show_default=False,
    ),
]
SnapshotOption = Annotated[
    str | None,
    typer.Option(
        help="Snapshot to learn from: latest, a digest or its beginning, or a folder (default: the file's).",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, show the plan, train nothing.")]
SweepOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=A,B,...",
        help="First compare values in short rounds, by accuracy on validation rows, and train with the best.",
        show_default=False,
    ),
]
SweepSteps = Annotated[int, typer.Option(min=1, help="Optimiser steps of each short round.")]
Reason = Annotated[str, typer.Option(help="Why, for those who read it later.")]


def _command(method: str) -> Callable[..., None]:
    def train(
        config: ConfigOption,
        overrides: SetOption = None,
        policy: PolicyOption = None,
        snapshot: SnapshotOption = None,
        dry_run: DryRun = False,
        sweep: SweepOption = None,
        sweep_steps: SweepSteps = 20,
        reason: Reason = "ratchet train",
        data_dir: DataDir = None,
        as_json: AsJson = False,
    ) -> None:
        _train(
            method,
            config,
            overrides,
            policy,
            snapshot,
            dry_run,
            sweep,
            sweep_steps,
            reason,
            data_dir,
            as_json,
        )

    return train


for _method, _help in {
    "sft": "Supervised fine-tuning on demonstrations.",
    "rm": "A reward model on preference pairs.",
    "dpo": "Direct preference optimisation on preference pairs.",
}.items():
    app.command(_method, help=_help)(_command(_method))


def _train(
    method: str,
    path: Path,
    overrides: list[str] | None,
    policy: str | None,
    snapshot: str | None,
    dry_run: bool,
    sweep: str | None,
    sweep_steps: int,
    reason: str,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    from ratchet.commands.operator import operator_engine
    from trainer.config import Method, load
    from trainer.rounds.asking import prepare

    home, wanted, words = Home.resolve(data_dir), Method(method), list(overrides or ())

    def prepared(more: list[str]) -> "Prepared":
        def build(given: dict[str, Any]) -> Any:
            return load(path, [*words, *more], **given)

        with operator_engine(home) as engine:
            return prepare(engine, home, wanted, build, policy=policy, snapshot=snapshot)

    if dry_run:
        with operator_engine(home) as engine:
            emit(_dry(engine, wanted, prepared([])), as_json, _print_dry)
        return
    compared: dict[str, Any] | None = None
    if sweep is not None:
        from trainer.rounds.sweep import choose

        compared = choose(
            sweep, sweep_steps, prepared, partial(_run, home, reason=f"{reason}: sweep {sweep}")
        )
        words.append(compared["chosen"])
    ended = _run(home, prepared([]), None, reason=reason)
    document = {"id": ended.id, "state": ended.state, "error": ended.error, **(ended.summary or {})}
    if compared is not None:
        document["sweep"] = compared
    emit(document, as_json, _print_summary)
    if ended.state == "failed":
        raise typer.Exit(1)


def _run(home: Home, prepared: "Prepared", sweep: "UUID | None", *, reason: str) -> "Ended":
    """Asks for a round as the operator and carries it out as the trainer."""
    from ratchet.account import account
    from ratchet.commands.operator import operator_engine, role_engine
    from ratchet.db.roles import Role
    from ratchet.errors import EnvironmentFault
    from trainer.commands.live import live
    from trainer.rounds.asking import ask_for
    from trainer.rounds.conduct import carry_out
    from trainer.rounds.conductor import instance
    from trainer.rounds.start import launch

    with live() as shown:
        with operator_engine(home) as engine:
            identity = ask_for(
                engine, home, prepared, by=account(), reason=reason, sweep=sweep, report=shown.stage
            )
        with role_engine(home, Role.TRAINER) as engine:
            ended = carry_out(engine, home, identity, worker=instance(), launch=launch, show=shown)
    if ended is None:
        raise EnvironmentFault(
            f"round {identity} was taken by the trainer's worker: `ratchet round show {identity}`"
        )
    return ended


def _dry(engine: "Engine", method: "Method", prepared: "Prepared") -> dict[str, Any]:
    from ratchet.model_folder import inspect
    from trainer.data.rows import read_demonstrations, read_pairs, require_usable
    from trainer.plan.report import memory_of
    from trainer.rounds.asking import kind_of, with_template

    folder = prepared.data.folder
    reader = read_demonstrations if kind_of(method) == "demonstrations" else read_pairs
    parts = {part: reader(folder / f"{part}.parquet") for part in ("train", "validation")}
    train = parts["train"]
    require_usable(str(folder), len(train.rows), train.total, train.dropped)
    trained = prepared.policy or inspect(prepared.config.model)
    config = with_template(engine, prepared, trained.template_digest)
    return {
        "method": method.value,
        "policy": prepared.policy.ref if prepared.policy else None,
        "model": str(config.model),
        "snapshot": prepared.data.digest,
        "data": {
            part: {"usable": len(read.rows), "dropped": dict(read.dropped)} for part, read in parts.items()
        },
        "config": config.content(),
        "memory": memory_of(config, config.model, folder, kind_of(method)),
    }


def _print_dry(document: dict[str, Any]) -> None:
    from rich.console import Console

    from trainer.plan.report import print_memory

    out = Console()
    out.print(f"{document['method']} of {document['policy'] or document['model']}", markup=False)
    out.print(f"snapshot {document['snapshot'][:12]}", markup=False)
    for part, read in document["data"].items():
        reasons = ", ".join(f"{reason} {count}" for reason, count in read["dropped"].items())
        dropped = f"; dropped: {reasons}" if reasons else ""
        out.print(f"  {part}: {read['usable']} usable rows{dropped}", markup=False)
    print_memory(document["memory"])
    out.print("nothing was trained: leave --dry-run out", markup=False)


def _print_summary(document: dict[str, Any]) -> None:
    from rich.console import Console

    from trainer.commands.tables import checkpoint_table

    out = Console()
    out.print(f"round {document['id']}: {document['state']}", markup=False)
    if document["error"]:
        out.print(document["error"], markup=False)
    if document.get("sweep"):
        out.print(f"chosen by the sweep: {document['sweep']['chosen']}", markup=False)
    if "steps" not in document:
        return
    data = document["data"]
    dropped = ", ".join(f"{reason} {count}" for reason, count in data["dropped"].items()) or "none"
    out.print(
        f"{document['steps']} steps ({document['reason']}) over {data['used']} examples; dropped: {dropped}",
        markup=False,
    )
    out.print(
        f"{document['pairs_per_second']:.2f} examples/s, {document['tokens_per_second']:.0f} tokens/s, "
        f"peak memory {document['peak_memory_bytes'] / 2**20:,.0f} MiB",
        markup=False,
    )
    out.print(checkpoint_table(document["checkpoints"]))
