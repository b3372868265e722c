"""Chat rows to token ids: the template is rendered once, and the boundary is found in tokens.

The rendered text already holds every control token, so the tokenizer adds none; a second BOS cannot appear.
The answer's ids are cut out of the ids of the whole conversation, so what is learned is what the engine,
given the same messages, would have had to produce: the answer and the token that ends its turn, nothing
behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from ratchet.canonical import digest_of
from trainer.data.prefix import common_prefix
from trainer.data.rows import Drop, Unusable
from trainer.errors import ModelUnsupported

MAX_MERGED_TOKENS = 2
"""Prompt tokens that may merge with an answer's first; a longer disagreement is not a merge."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt and its answers in tokens.

    Attributes:
        prompt: Ids that all answers share; at least one.
        answers: Ids of each answer, with the token that ends its turn; at least one each.
        merged_tokens: Prompt tokens that were cut because an answer's text merged with them.
    """

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    merged_tokens: int


class Renderer:
    """Renders rows with one tokenizer's chat template.

    Args:
        tokenizer: With a chat template and an EOS token.
        stop_ids: Ids that end a turn beside the tokenizer's EOS (a model's generation config may name
            several).
        template_arguments: Extra variables of the template, such as a fixed date; part of the digest.

    Raises:
        ModelUnsupported: The tokenizer has no chat template, or no EOS token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_ids: Sequence[int] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(template_arguments or {})
        self.template_digest = template_digest(tokenizer, self._arguments)
        if tokenizer.eos_token_id is None:
            raise ModelUnsupported(
                f"{tokenizer.name_or_path}: the tokenizer has no EOS token, so no answer could end"
            )
        self.bos_id: int | None = tokenizer.bos_token_id
        self.eos_id: int = tokenizer.eos_token_id
        self._stop_ids = frozenset({self.eos_id, *stop_ids})
        self._control_marks = tuple(
            sorted(
                {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
                | set(tokenizer.all_special_tokens)
            )
        )

    def render(self, prompt: Sequence[Mapping[str, str]], answers: Sequence[str]) -> Rendered:
        """Token ids of a prompt and of each answer to it.

        Args:
            prompt: Messages of `role` and `content`, oldest first.
            answers: One answer or more, as text.

        Raises:
            Unusable: The row cannot be rendered faithfully; the reason says why.
        """
        self._refuse_control_marks([message["content"] for message in prompt])
        self._refuse_control_marks(answers)
        prompt_text = self._text(prompt, add_generation_prompt=True)
        prompt_ids = self._ids(prompt_text)
        if not prompt_ids:
            raise Unusable(Drop.EMPTY_PROMPT)
        wholes = [self._whole(prompt, prompt_text, answer) for answer in answers]
        shared = min(common_prefix(prompt_ids, whole) for whole in wholes)
        merged = len(prompt_ids) - shared
        if merged > MAX_MERGED_TOKENS or not shared:
            raise Unusable(Drop.UNSTABLE_BOUNDARY)
        cut = tuple(self._answer(whole[shared:]) for whole in wholes)
        if len(cut) > 1 and len(set(cut)) == 1:
            raise Unusable(Drop.IDENTICAL_ANSWERS)
        return Rendered(prompt=tuple(prompt_ids[:shared]), answers=cut, merged_tokens=merged)

    def _whole(self, prompt: Sequence[Mapping[str, str]], prompt_text: str, answer: str) -> list[int]:
        text = self._text([*prompt, {"role": "assistant", "content": answer}], add_generation_prompt=False)
        if not text.startswith(prompt_text):
            raise Unusable(Drop.UNSTABLE_BOUNDARY)
        return self._ids(text)

    def _answer(self, ids: list[int]) -> tuple[int, ...]:
        end = next((place for place, token in enumerate(ids) if token in self._stop_ids), None)
        if end is None:
            ids = [*ids, self.eos_id]
            end = len(ids) - 1
        if end == 0:
            raise Unusable(Drop.EMPTY_ANSWER)
        return tuple(ids[: end + 1])

    def _text(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self._arguments,
            )
        except TemplateError as error:
            raise Unusable(Drop.TEMPLATE_REFUSED) from error
        return str(text)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        bos = self._tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            raise Unusable(Drop.REPEATED_BOS)
        return ids

    def _refuse_control_marks(self, texts: Sequence[str]) -> None:
        if any(control in text for text in texts for control in self._control_marks):
            raise Unusable(Drop.CONTROL_MARK_IN_TEXT)


def template_digest(
    tokenizer: PreTrainedTokenizerBase, template_arguments: Mapping[str, Any] | None = None
) -> str:
    """Identity of everything that turns messages into text: 64 hex digits.

    Raises:
        ModelUnsupported: The tokenizer has no chat template.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:
        raise ModelUnsupported(
            f"{tokenizer.name_or_path}: no chat template; add chat_template.jinja to the folder"
        ) from error
    return digest_of(
        {
            "template": template,
            "bos": tokenizer.bos_token,
            "eos": tokenizer.eos_token,
            "arguments": dict(template_arguments or {}),
        }
    )
