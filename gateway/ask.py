"""What a client asks, read from its body and checked: everything later parts take for granted."""

from dataclasses import dataclass
from typing import Any

from gateway import jsontext
from gateway.errors import bad_request
from gateway.fields import Fields, Kind, check_fields
from gateway.jsontext import as_list, as_object

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
MESSAGE_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
MAX_NAME = 512


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        kind: Which endpoint.
        model: A name, or `name@version`.
        messages: The conversation; of a completion, its prompt as one user message.
        stream: Whether the answer is wanted piece by piece.
        include_usage: Whether a stream's token counts are wanted.
        user: The client's name for the end user.
        fields: What it says of the answer.
    """

    kind: Kind
    model: str
    messages: list[dict[str, Any]]
    stream: bool
    include_usage: bool
    user: str | None
    fields: Fields

    @property
    def prompt(self) -> dict[str, Any]:
        """The part of the engine's request that holds the text; lone surrogates, which no tokenizer takes,
        are replaced by U+FFFD."""
        if self.kind is Kind.CHAT:
            return {"messages": jsontext.without_surrogates(self.messages)}
        return {"prompt": jsontext.without_surrogates(self.messages[0]["content"])}


def read_document(body: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        ApiError: 400 when it is none.
    """
    try:
        document = as_object(jsontext.decode(body))
    except ValueError as error:
        raise bad_request(None, f"the body is not JSON: {error}", code="invalid_json") from error
    if document is None:
        raise bad_request(None, "the body must be a JSON object", code="invalid_json")
    return document


def read_ask(kind: Kind, document: dict[str, Any]) -> Ask:
    """Checks a request.

    Raises:
        ApiError: 400 naming the field at fault.
    """
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise bad_request("model", "model must be a name, or name@version", code="missing_required_parameter")
    stream = document.get("stream") or False
    if not isinstance(stream, bool):
        raise bad_request("stream", "stream must be true or false")
    messages = _messages(document.get("messages")) if kind is Kind.CHAT else _prompt_as_messages(document)
    return Ask(
        kind=kind,
        model=model,
        messages=messages,
        stream=stream,
        include_usage=_include_usage(document.get("stream_options"), stream),
        user=short_text("user", document.get("user")),
        fields=check_fields(kind, document),
    )


def short_text(name: str, value: Any) -> str | None:
    """A name of at most 512 characters; empty counts as absent.

    Raises:
        ApiError: 400 for anything else.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise bad_request(name, f"{name} must be a text of at most {MAX_NAME} characters")
    return value


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    known = as_object(options)
    if known is None:
        raise bad_request("stream_options", "stream_options must be an object")
    if not stream:
        raise bad_request("stream_options", "stream_options goes with stream: true only")
    for name in known:
        if name not in ("include_usage", "include_obfuscation"):
            param = f"stream_options.{name}"
            raise bad_request(param, f"{param} is not supported", code="unsupported_parameter")
    wanted = known.get("include_usage") or False
    if not isinstance(wanted, bool):
        raise bad_request("stream_options.include_usage", "include_usage must be true or false")
    return wanted


def _prompt_as_messages(document: dict[str, Any]) -> list[dict[str, Any]]:
    prompts = as_list(document.get("prompt")) or [document.get("prompt")]
    if len(prompts) != 1 or not isinstance(prompts[0], str) or not prompts[0]:
        raise bad_request(
            "prompt", "prompt must be one text; token ids and several prompts are not supported"
        )
    return [{"role": "user", "content": prompts[0]}]


def _messages(value: Any) -> list[dict[str, Any]]:
    messages = as_list(value)
    if not messages:
        raise bad_request("messages", "messages must be a list of at least one message")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(where: str, value: Any) -> dict[str, Any]:
    given = as_object(value)
    if given is None:
        raise bad_request(where, f"{where} must be an object with role and content")
    message = {name: item for name, item in given.items() if item is not None and item != []}
    for name in message:
        if name not in MESSAGE_FIELDS:
            raise bad_request(f"{where}.{name}", f"{where}.{name} is not supported")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(f"{where}.role", f"{where}.role must be one of {', '.join(sorted(ROLES))}")
    content = given.get("content")
    parts = as_list(content)
    if parts is not None:
        _check_parts(f"{where}.content", parts)
    elif content is None:
        if role != "assistant" or "tool_calls" not in message:
            raise bad_request(f"{where}.content", f"{where}.content must be a text")
    elif not isinstance(content, str):
        raise bad_request(f"{where}.content", f"{where}.content must be a text, or a list of text parts")
    return {**message, "content": content}


def _check_parts(where: str, parts: list[Any]) -> None:
    if not parts:
        raise bad_request(where, f"{where} must hold at least one part")
    for number, item in enumerate(parts):
        part = as_object(item) or {}
        if part.get("type") != "text":
            raise bad_request(
                f"{where}[{number}]", f"{where}[{number}] is no text part: this model reads text only"
            )
        if not isinstance(part.get("text"), str):
            raise bad_request(f"{where}[{number}].text", f"{where}[{number}].text must be a text")
