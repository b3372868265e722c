"""Who a prompt is: its normalised text, its hash, the split that hash decides, and its conversation.

A chat message is a mapping as the OpenAI API has it: `role`, `content` (text, a list of parts, or null) and
whatever else the client sent. NUL and lone surrogates, which PostgreSQL cannot hold, count as U+FFFD
everywhere, so that a hash taken before storing equals one taken after.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from ratchet.canonical import digest_of, digest_of_text

Message = Mapping[str, Any]

NGRAM = 13
"""Words in a row that two texts must share to count as overlapping (Brown et al. 2020, appendix C)."""

VALIDATION_PERCENT = 10
HELDOUT_PERCENT = 10
"""The other 80 percent train. Changing a share would move prompts between splits: it is never changed."""

_HASH = re.compile(r"[0-9a-f]{64}")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # kana, Han
)


class Split(StrEnum):
    """What a prompt may be used for."""

    TRAIN = "train"
    VALIDATION = "validation"
    HELDOUT = "heldout"


def storable(text: str) -> str:
    """The text with NUL and lone surrogates replaced by U+FFFD: what PostgreSQL and UTF-8 can hold."""
    return _UNSTORABLE.sub("\ufffd", text)


def normalise(text: str) -> str:
    """Unicode NFKC, case-folded, white space collapsed to single spaces and stripped.

    NFKC is applied once more after case folding, which can leave a text denormalised; normalising twice
    changes nothing.
    """
    composed = unicodedata.normalize("NFKC", storable(text))
    return " ".join(unicodedata.normalize("NFKC", composed.casefold()).split())


def message_text(message: Message) -> str:
    """The text of a message; parts are joined by line feeds, others show as type and digest."""
    content: Any = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if part.get("type") == "text":
        return str(part.get("text") or "")
    return f"[{part.get('type')} {digest_of(part)}]"


def prompt_text(messages: Sequence[Message]) -> str:
    """The text a conversation is known by: its first user message, else its first message of any role.

    Raises:
        ValueError: There is no message at all.
    """
    if not messages:
        raise ValueError("a conversation without messages has no prompt")
    first = next((message for message in messages if message.get("role") == "user"), messages[0])
    return message_text(first)


def hash_of_text(text: str) -> str:
    """SHA-256 (64 hex digits) of the normalised text: the identity of a prompt."""
    return digest_of_text(normalise(text))


def prompt_hash(messages: Sequence[Message]) -> str:
    """The identity of a conversation's prompt: `hash_of_text` of its `prompt_text`.

    Raises:
        ValueError: There is no message at all.
    """
    return hash_of_text(prompt_text(messages))


def split(prompt_hash: str) -> Split:
    """What a prompt may be used for, decided by its hash alone, the same for ever and on every machine.

    The first 64 bits of the hash modulo 100: 0 to 9 are held out, 10 to 19 validation, the rest train.

    Raises:
        ValueError: The hash is not 64 lower-case hex digits.
    """
    if not _HASH.fullmatch(prompt_hash):
        raise ValueError(f"{prompt_hash!r} is no prompt hash: 64 lower-case hex digits are expected")
    place = int(prompt_hash[:16], 16) % 100
    if place < HELDOUT_PERCENT:
        return Split.HELDOUT
    if place < HELDOUT_PERCENT + VALIDATION_PERCENT:
        return Split.VALIDATION
    return Split.TRAIN


def history_hash(messages: Sequence[Message]) -> str:
    """SHA-256 (64 hex digits) of a full message list, to the letter: equal when a request is repeated.

    Text given as a string or as one text part is the same; absent and null fields are the same.
    """
    return digest_of([_exact(message) for message in messages])


def conversation_id(
    messages: Sequence[Message], *, key: str, user: str | None = None, session: str | None = None
) -> str:
    """Names the conversation a request belongs to: 32 hex digits.

    A client resends the history with every turn, so what stays the same is the opening: every message up to
    and including the first of the user. Two conversations of one user that open with the same words are told
    apart only by their session.

    Args:
        messages: The request's messages, oldest first.
        key: Id of the API key; conversations never cross keys.
        user: The client's name for the end user.
        session: The client's name for the session.
    """
    opening: list[dict[str, Any]] = []
    for message in messages:
        opening.append(_exact(message))
        if message.get("role") == "user":
            break
    return digest_of({"key": key, "user": user, "session": session, "opening": opening})[:32]


def _exact(message: Message) -> dict[str, Any]:
    fields = {name: value for name, value in message.items() if value is not None}
    return {**fields, "content": storable(message_text(message))}


class _WordBreaks(dict[int, str]):
    """A translation table, filled as characters are met: all but letters, marks and numbers become spaces."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if _UNSPACED.match(character):
            replacement = f" {character} "
        elif unicodedata.category(character)[0] in "LMN":
            replacement = character
        else:
            replacement = " "
        self[code] = replacement
        return replacement


_WORD_BREAKS = _WordBreaks()


def words(text: str) -> list[str]:
    """The words of the normalised text without punctuation; a character a word in scripts without spaces."""
    return normalise(text).translate(_WORD_BREAKS).split()


def ngrams(text: str, n: int = NGRAM) -> frozenset[int]:
    """The n-grams of a text's words, each as a 64-bit BLAKE2b hash; empty for texts of fewer than n words."""
    parts = [word.encode("utf-8") for word in words(text)]
    return frozenset(_gram(parts[start : start + n]) for start in range(len(parts) - n + 1))


def _gram(parts: Iterable[bytes]) -> int:
    return int.from_bytes(hashlib.blake2b(b" ".join(parts), digest_size=8).digest())
