"""Release plans by name: those that come with Ratchet, and files of an operator's own."""

from pathlib import Path

from gateway.releases.plan import ReleasePlan, load_release_plan, parse_release_plan
from ratchet.errors import ConfigError

INSTALLED = Path(__file__).with_name("shipped")
FOLDER = INSTALLED if INSTALLED.is_dir() else Path(__file__).resolve().parents[2] / "deploy" / "releases"


def shipped() -> list[str]:
    """Names of the plans that come with Ratchet."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def shipped_plan(name: str) -> ReleasePlan:
    """A plan that comes with Ratchet.

    Raises:
        ConfigError: There is none of this name.
    """
    if name not in shipped():
        known = ", ".join(shipped()) or "none"
        raise ConfigError(f"no release plan is called {name!r}; those that come with Ratchet: {known}")
    return load_release_plan(FOLDER / f"{name}.toml")


def plan_of_text(wish: str) -> ReleasePlan:
    """A plan that comes with Ratchet by its name, or one by the text of its file.

    Raises:
        ConfigError: It is neither, or wrong.
    """
    return parse_release_plan(wish, "the release plan") if "\n" in wish else shipped_plan(wish)


def chosen_plan(wish: str) -> ReleasePlan:
    """A plan by its name, or by the path of a file.

    Raises:
        ConfigError: It is neither, or wrong.
    """
    path = Path(wish)
    if wish not in shipped() and (path.suffix == ".toml" or path.exists()):
        return load_release_plan(path)
    return shipped_plan(wish)
