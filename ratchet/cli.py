"""The `ratchet` command. Each group of commands is loaded only when it is called."""

import importlib
import importlib.metadata
import sys
from typing import Annotated

import typer

from ratchet.errors import RatchetError

HELP = """Serve a policy, collect what people say, train, select, release.

Start with `ratchet doctor`, then `ratchet up`. Every command takes --help; those that report take --json.
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("ratchet.commands.up", "Start the whole stack on this machine."),
    "demo": ("ratchet.commands.demo", "The main job on real parts, in one command."),
    "doctor": ("ratchet.commands.doctor", "Check this machine, and say how to mend what is wrong."),
    "backup": ("ratchet.commands.backup", "Write the database and the artefacts into one archive."),
    "restore": ("ratchet.commands.restore", "Bring a backup back into an empty data folder."),
    "gc": ("ratchet.commands.gc", "Remove artefacts that no row names."),
    "model": ("ratchet.commands.model", "Fetch model folders."),
    "policy": ("ratchet.commands.policy", "Register and inspect policy versions."),
    "keys": ("ratchet.commands.keys", "Create, list and revoke API keys."),
    "judge": ("evaluator.commands.judge", "Register judges, and measure what they are worth."),
    "evaluate": ("evaluator.commands.evaluate", "Policies on suites, and the report on a selection."),
    "select": ("evaluator.commands.select", "Propose one checkpoint of a round, or none."),
    "chat": ("evaluator.commands.chat", "Two policies side by side in the terminal."),
    "release": ("gateway.commands.release", "Bring a policy to production, watch it, take it back."),
    "pairs": ("feedback.commands.pairs", "Freeze, look at, export and import preference data."),
    "feedback": ("feedback.commands.feedback", "Metrics, gold items and samples."),
    "train": ("trainer.commands.train", "A round here and now, and the plan before it."),
    "round": ("trainer.commands.round", "Rounds as rows: ask, look, compare, stop, resume, export."),
    "loop": ("ratchet.commands.loop", "Turns of the loop: list, show, stop, retry."),
    "reward": ("trainer.reward.commands", "Reward models: what was measured of them, and a server for one."),
    "rater": ("feedback.commands.rater", "Who compares answers, and how they sign in."),
    "forget": ("feedback.commands.forget", "Remove a person's prompts, answers, events and pairs."),
    "responses": ("ratchet.commands.responses", "Look at what was answered."),
    "lineage": ("ratchet.commands.lineage", "Everything that led to a response, a policy or a user's data."),
    "db": ("ratchet.commands.db", "Database addresses."),
}


def build(wanted: str | None) -> typer.Typer:
    """The command tree, with the one group that is called loaded and the others named by their short help.

    A command's module has `app` (a group of commands) or `command` (one command).
    """
    root = typer.Typer(
        name="ratchet",
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback()(_root)
    for name, (module_name, help_line) in COMMANDS.items():
        if name != wanted:
            root.command(name, help=help_line)(_not_loaded)
            continue
        module = importlib.import_module(module_name)
        if hasattr(module, "app"):
            root.add_typer(module.app, name=name, help=help_line, no_args_is_help=True)
        else:
            root.command(name, short_help=help_line)(module.command)
    return root


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(importlib.metadata.version("ratchet"))
        raise typer.Exit


def _not_loaded() -> None:
    raise AssertionError("a command that was not asked for was called")


def main() -> None:
    """Runs one command. Errors made on purpose become one line on stderr and their exit code."""
    wanted = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        build(wanted)()
    except RatchetError as error:
        sys.stderr.write(f"ratchet: {error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
