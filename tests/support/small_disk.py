"""A gateway's recorder on a disk that fills up for real and is freed again; a process of its own.

    python -m tests.support.small_disk URL SPOOL_DIR POLICY MEANS

MEANS is `ballast` (fill the file system of SPOOL_DIR, which must be a small one) or `rlimit` (no file of this
process may grow). Prints one JSON document: what each call answered, and what was delivered.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from gateway.recorder import Handle, Recorder
from ratchet.errors import SpoolFull
from ratchet.ids import new_id
from tests.support.recording import closing, opening, settings

PIECE = "z" * 4096
PIECES = 20


class Disk:
    """Something that can be full."""

    def __init__(self, spool_dir: Path, means: str) -> None:
        self._ballast = spool_dir / "ballast"
        self._means = means

    def fill(self) -> None:
        """Takes all the room there is."""
        if self._means == "rlimit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
            return
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self) -> None:
        """Gives it back."""
        if self._means == "rlimit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            self._ballast.unlink()


class Client:
    """One request whose text is delivered only after it is recorded."""

    def __init__(self, recorder: Recorder, *, stream: bool = True) -> None:
        self.id = new_id()
        self.delivered = ""
        question = [{"role": "user", "content": PIECE * 2}]
        self._handle: Handle = recorder.begin(opening(self.id, stream=stream, messages=question))
        self.recorded = self._handle.recorded

    def stream(self, pieces: int) -> str:
        """Delivers so many pieces; says `delivered`, or `refused` at the first that must not leave."""
        for _ in range(pieces):
            try:
                self._handle.delta(0, PIECE)
            except SpoolFull:
                return "refused"
            self.delivered += PIECE
        return "delivered"

    def end(self, status: str, body: str | None = None) -> str:
        """Ends it; says `done`, or `refused` when `[DONE]` or the body must not leave."""
        outputs = None if body is None else [{"index": 0, "text": body, "finish_reason": "stop"}]
        try:
            self._handle.end(closing(status=status, outputs=outputs))
        except SpoolFull:
            return "refused"
        self.delivered += body or ""
        return "done"


def begin(recorder: Recorder) -> tuple[str, Client | None]:
    """Begins one more request."""
    try:
        client = Client(recorder)
    except SpoolFull:
        return "refused", None
    return "recorded" if client.recorded else "unrecorded", client


def story(url: str, spool_dir: Path, policy: str, means: str) -> dict[str, Any]:
    """Two requests under way when the disk fills up, one that comes then, and one that comes after."""
    disk = Disk(spool_dir, means)
    recorder = Recorder(settings(url, spool_dir, spool_full=policy, spool_fsync_interval_s=0.05), "small")
    recorder.start()
    streaming, whole = Client(recorder), Client(recorder, stream=False)
    said: dict[str, Any] = {"before": streaming.stream(3)}
    disk.fill()
    said["streaming"] = streaming.stream(PIECES)
    said["streaming_end"] = streaming.end("error" if said["streaming"] == "refused" else "ok")
    said["whole"] = whole.end("ok", body=PIECE * 2)
    said["newcomer"], newcomer = begin(recorder)
    if newcomer is not None:
        said["newcomer_stream"] = newcomer.stream(1)
        said["newcomer_end"] = newcomer.end("ok")
    said["full"] = recorder.status()["full"]
    disk.free()
    said["after"], after = begin(recorder)
    assert after is not None
    said["after_stream"], said["after_end"] = after.stream(3), after.end("ok")
    recorder.stop(20)
    said["status"] = recorder.status()
    said["delivered"] = {
        name: [str(client.id), client.delivered]
        for name, client in (("streaming", streaming), ("whole", whole), ("after", after))
    }
    return said


if __name__ == "__main__":
    sys.stdout.write(json.dumps(story(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])))
