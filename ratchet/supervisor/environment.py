"""The environments of the stack's processes: built from a list of what may pass, never inherited whole.

So a secret in the shell that ran `ratchet up` reaches no process that was not meant to have it.
"""

import os
from collections.abc import Iterable, Mapping

from ratchet.settings import GatewaySettings, Process

PASSED_TO_ALL = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONHASHSEED", "PYTHONWARNINGS",
)  # fmt: skip
PASSED_TO_ENGINES = (
    "VLLM_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "ROCR_",
    "HIP_",
    "TRITON_",
    "TORCHINDUCTOR_",
    "KMP_",
)
PASSED_TO_ENGINES_BY_NAME = (
    "CC",
    "CXX",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "XDG_CACHE_HOME",
)
_NEVER = ("DATABASE_URL", "BROKER_URL", "API_KEY", "STORE_KEY", "PASSWORD", "SECRET", "TOKEN")


def inherited(prefixes: Iterable[str] = (), names: Iterable[str] = ()) -> dict[str, str]:
    """What passes from our own environment.

    Args:
        prefixes: Beginnings of names that pass too, unless the name ends like a secret's.
        names: Whole names that pass too.
    """
    wanted = {*PASSED_TO_ALL, *names}
    beginnings = tuple(prefixes)
    return {
        name: value
        for name, value in os.environ.items()
        if name in wanted or (beginnings and name.startswith(beginnings) and not name.endswith(_NEVER))
    }


def of_service(
    service: str, kind: type[Process], given: Mapping[str, str], secrets: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a web application or a worker.

    An operator's own values of the process's settings pass, and every `RATCHET_<SERVICE>_...`.

    Args:
        service: `gateway`, `feedback`, `trainer` or `evaluator`.
        kind: Its settings; fields that hold secrets come from `secrets` alone.
        given: Set by the supervisor, over what was inherited.
        secrets: Set by the supervisor, and never inherited.
    """
    fields = (f"RATCHET_{field.upper()}" for field in kind.model_fields)
    names = [name for name in fields if not name.endswith(_NEVER)]
    return {
        **inherited((f"RATCHET_{service.upper()}_",), names),
        "PYTHONUNBUFFERED": "1",
        **given,
        **secrets,
    }


def of_gateway(given: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The gateway's environment."""
    return of_service("gateway", GatewaySettings, given, secrets)


def of_engine(given: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """An engine's environment: no database, no home of ours, nothing that reaches the network for models."""
    return {
        **inherited(PASSED_TO_ENGINES, PASSED_TO_ENGINES_BY_NAME),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        **given,
        **secrets,
    }
