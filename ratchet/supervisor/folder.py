"""Whether a policy's folder is still whole enough to start an engine on, seen without reading the weights."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ratchet.errors import PolicyRefused


def check(folder: Path) -> None:
    """Looks at the configuration and at the headers and sizes of the weight files.

    Raises:
        PolicyRefused: Something is missing, cut short or not what it says; the message names the file.
    """
    config = folder / "config.json"
    try:
        json.loads(config.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyRefused(f"{config} cannot be read: {error}") from error
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise PolicyRefused(f"{folder} holds no *.safetensors weights")
    for file in weights:
        try:
            with safe_open(file, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise PolicyRefused(
                f"{file} is damaged ({error}): restore it, or add the policy again"
            ) from error
