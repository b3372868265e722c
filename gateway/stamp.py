"""Is this answer from the engine that was proved? Checked on every answer, by the fingerprint it carries."""

from gateway.errors import ApiError


class StampMismatch(ApiError):
    """An answer that does not carry the proved fingerprint; it is withheld.

    Attributes:
        seen: What it carries; None when nothing.
    """

    def __init__(self, policy: str, seen: str | None) -> None:
        super().__init__(
            502, "stamp_mismatch",
            f"the engine that answered is not the one proved to be {policy}: its answer is withheld",
            retry_after_s=1,
        )  # fmt: skip
        self.seen = seen


def check(policy: str, proved: str | None, seen: object) -> str:
    """The fingerprint of an answer.

    Args:
        policy: Whom the engine was proved to be.
        proved: The fingerprint it had then.
        seen: `system_fingerprint` of the answer.

    Raises:
        StampMismatch: They differ, or there is none.
    """
    if not isinstance(seen, str) or not seen or seen != proved:
        raise StampMismatch(policy, seen if isinstance(seen, str) else None)
    return seen
