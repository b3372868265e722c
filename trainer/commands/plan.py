"""`ratchet train plan`: which labels there are, what they are good for, and whether the round fits."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.commands.options import AsJson, DataDir, emit
from ratchet.home import Home


def command(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file of the round (default: the recommended method's defaults)."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Over the file; the key is dotted.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Policy to train: NAME@VERSION, NAME, current, or current:MODEL.")
    ] = "current",
    snapshot: Annotated[
        str, typer.Option(help="Snapshot to learn from: latest, a digest or its beginning, or a folder.")
    ] = "latest",
    verifier: Annotated[
        list[str] | None,
        typer.Option("--verifier", metavar="NAME=MS", help="A check that needs no person, and its time."),
    ] = None,
    answer_ms: Annotated[
        float, typer.Option(min=0.001, help="Time the policy takes for one answer, in ms.")
    ] = 1000.0,
    growth: Annotated[float, typer.Option(min=1, help="How many times longer answers may become.")] = 1.5,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of one device, such as 80GiB (default: this machine's).", show_default=False
        ),
    ] = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="What it runs on (default: what is here).")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a prompt, instead of the snapshot's.")
    ] = None,
    answer_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer, instead of the snapshot's.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Say which method the labels at hand are good for, and whether the round fits into memory."""
    from ratchet.commands.operator import role_engine
    from ratchet.db.engine import session_scope
    from ratchet.db.roles import Role
    from ratchet.registry import folder_of
    from trainer.config import Method, RoundConfig, load
    from trainer.plan.device import Device, here, size_of
    from trainer.plan.labels import recommend
    from trainer.plan.reading import examples_of, labels_of
    from trainer.plan.report import document, fit_of
    from trainer.plan.setup import Examples
    from trainer.rounds.asking import find_data, find_policy, kind_of

    checks = [_verifier(each) for each in verifier or ()]
    home = Home.resolve(data_dir)
    with role_engine(home, Role.TRAINER) as engine, session_scope(engine) as session:
        version = find_policy(session, policy)
        folder = folder_of(home, version, verify=False)
        labels = labels_of(session, version.ref, checks, answer_ms)
        advice = recommend(labels)
        method = Method.SFT if advice.method == "sft" else Method.DPO

        def configured(data: Path) -> RoundConfig:
            known: dict[str, Any] = {"model": folder, "snapshot": data}
            if config is None:
                return load(Path("/dev/null"), overrides or (), method=method.value, **known)
            return load(config, overrides or (), **known)

        wanted = configured(folder)
        kind = kind_of(wanted.method)
        if prompt_tokens is not None and answer_tokens is not None:
            examples = Examples(prompt_tokens, answer_tokens, 1 if kind == "demonstrations" else 2)
        else:
            data = find_data(session, snapshot, kind)
            examples = examples_of(data.folder, kind, folder, wanted.data.max_length)
    device = here()
    if gpu is not None or memory is not None:
        kind_of_device = device.kind if gpu is None else ("cuda" if gpu else "cpu")
        device = Device(kind_of_device, device.bytes if memory is None else size_of(memory))
    found = fit_of(wanted, folder, examples, device=device, growth=growth)
    emit(
        {
            "policy": version.ref,
            "labels": {
                "demonstrations": labels.demonstrations,
                "pairs": labels.all_pairs,
                "fresh_pairs": labels.fresh_pairs,
                "pairs_by_distance": {
                    "unknown" if distance is None else str(distance): count
                    for distance, count in sorted(
                        labels.pairs.items(), key=lambda item: (item[0] is None, item[0] or 0)
                    )
                },
                "verifiers": {each.name: each.milliseconds for each in labels.verifiers},
            },
            "recommendation": {"method": advice.method, "reason": advice.reason, "then": advice.then},
            "method": wanted.method.value,
            "memory": document(found, device, examples),
        },
        as_json,
        _print,
    )
    found.require()


def _verifier(text: str) -> Any:
    from ratchet.errors import UsageError
    from trainer.plan.labels import Verifier

    name, equals, milliseconds = text.partition("=")
    try:
        if equals and name and float(milliseconds) > 0:
            return Verifier(name, float(milliseconds))
    except ValueError:
        pass
    raise UsageError(f"--verifier {text}: NAME=MS is expected, such as tests=250")


def _print(shown: dict[str, Any]) -> None:
    from rich.console import Console

    from trainer.plan.report import print_memory

    out, labels = Console(), shown["labels"]
    out.print(f"policy {shown['policy']}", markup=False, highlight=False)
    out.print(f"{labels['demonstrations']} demonstrations", markup=False, highlight=False)
    ages = ", ".join(
        f"{count} at distance {distance}" for distance, count in labels["pairs_by_distance"].items()
    )
    out.print(f"{labels['pairs']} pairs{f': {ages}' if ages else ''}", markup=False, highlight=False)
    checks = ", ".join(f"{name} {spent:g} ms" for name, spent in labels["verifiers"].items()) or "none"
    out.print(f"verifiers: {checks}", markup=False, highlight=False)
    advice = shown["recommendation"]
    out.print(f"recommended: {advice['method'] or 'nothing yet'}, because {advice['reason']}", markup=False)
    out.print(f"then: {advice['then']}", markup=False)
    out.print(f"memory of {shown['method']}:", markup=False)
    print_memory(shown["memory"])
