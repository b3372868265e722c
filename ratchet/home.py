"""The data folder: where everything one stack owns on a machine lives."""

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOME = ".ratchet"


@dataclass(frozen=True)
class Home:
    """Paths below one data folder (`--data-dir`, else `RATCHET_HOME`, else `./.ratchet`)."""

    root: Path

    @classmethod
    def resolve(cls, data_dir: Path | None = None) -> "Home":
        """The data folder in force; nothing is created."""
        chosen = data_dir or Path(os.environ.get("RATCHET_HOME") or DEFAULT_HOME)
        return cls(chosen.expanduser().resolve())

    @property
    def postgres(self) -> Path:
        """The embedded PostgreSQL's cluster."""
        return self.root / "postgres"

    @property
    def run(self) -> Path:
        """State of the running stack: lock, ports, process ids."""
        return self.root / "run"

    @property
    def switch(self) -> Path:
        """Where a release is aborted while the database is away: all gateways of this machine look there."""
        return self.run / "switch"

    @property
    def secrets(self) -> Path:
        """Database URLs and engine keys, one file each, readable by the owner only."""
        return self.root / "secrets"

    @property
    def spool(self) -> Path:
        """The recorder's durable spool, a folder for each gateway process."""
        return self.root / "spool"

    @property
    def models(self) -> Path:
        """Model folders that `ratchet model fetch` makes."""
        return self.root / "models"

    @property
    def artifacts(self) -> Path:
        """Artefacts by kind and digest."""
        return self.root / "artifacts"

    @property
    def snapshots(self) -> Path:
        """Frozen data sets by digest."""
        return self.root / "snapshots"

    @property
    def rounds(self) -> Path:
        """A folder for each training round: its configuration, events, saves and exported candidates."""
        return self.root / "rounds"

    @property
    def evaluation(self) -> Path:
        """What the evaluator writes, and its processes' home: reports of its runs."""
        return self.root / "evaluation"

    @property
    def logs(self) -> Path:
        """One log file for each process of the stack."""
        return self.root / "logs"

    def ensure(self) -> "Home":
        """Creates the folders; `secrets` and `spool` are closed to other users."""
        for folder in (
            self.root, self.run, self.models, self.artifacts, self.snapshots, self.evaluation, self.logs,
        ):  # fmt: skip
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.secrets, self.spool):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self
