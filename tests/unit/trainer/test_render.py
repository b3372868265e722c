"""Rendering: one BOS, a boundary in tokens, an end that is learned, and rows that cannot be told
faithfully.
"""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from trainer.data.render import Renderer, template_digest
from trainer.data.rows import Drop, Unusable
from trainer.data.template import require_template
from trainer.errors import ModelUnsupported, TemplateMismatch

QUESTION = [{"role": "user", "content": "How wide is the river?"}]


def with_template(tokenizer: PreTrainedTokenizerBase, template: str | None) -> PreTrainedTokenizerBase:
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def test_prompt_and_answers_by_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    rendered = Renderer(tokenizer).render(QUESTION, ["Very wide.", "No."])
    served = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    assert list(rendered.prompt) == served
    assert [tokenizer.decode(answer) for answer in rendered.answers] == ["Very wide.<|end|>", "No.<|end|>"]
    assert all(answer[-1] == tokenizer.eos_token_id for answer in rendered.answers)
    assert rendered.merged_tokens == 0


def test_there_is_exactly_one_bos(tokenizer: PreTrainedTokenizerBase) -> None:
    """The tokenizer by itself would put a second before the template's."""
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False)
    assert tokenizer(text)["input_ids"].count(tokenizer.bos_token_id) == 2
    rendered = Renderer(tokenizer).render(QUESTION, ["Yes."])
    assert (*rendered.prompt, *rendered.answers[0]).count(tokenizer.bos_token_id) == 1


def test_a_template_that_writes_bos_twice_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    twice = with_template(tokenizer, "{{ bos_token }}" + str(tokenizer.chat_template))
    with pytest.raises(Unusable, match=Drop.REPEATED_BOS):
        Renderer(twice).render(QUESTION, ["Yes."])


WORDS = st.text(alphabet=st.sampled_from("The river begins? 7,\n\tü漢🙂"), min_size=1, max_size=30).filter(
    str.strip
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(WORDS, min_size=1, max_size=3),
    answers=st.lists(WORDS, min_size=2, max_size=2, unique=True),
)
def test_every_row_reads_as_the_template_says(
    tokenizer: PreTrainedTokenizerBase, turns: list[str], answers: list[str]
) -> None:
    """Prompt and answer together are the conversation's own tokens, up to the first end of the answer's
    turn.
    """
    prompt = [{"role": "user", "content": turn} for turn in turns]
    rendered = Renderer(tokenizer).render(prompt, answers)
    for answer, ids in zip(answers, rendered.answers, strict=True):
        whole = tokenizer.apply_chat_template(
            [*prompt, {"role": "assistant", "content": answer}], return_dict=False
        )
        together = [*rendered.prompt, *ids]
        assert whole[: len(together)] == together
        assert tokenizer.decode(whole[len(together) :]) == "\n"


MERGING = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }} {% else %}th{{ m.content }}"
    "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}th{% endif %}"
)


def test_a_boundary_that_merges_is_cut_before_the_merge(tokenizer: PreTrainedTokenizerBase) -> None:
    """The prompt ends with "th", which "e dough" completes to one token: the prompt gives it up, for both
    answers.
    """
    merging = with_template(tokenizer, MERGING)
    rendered = Renderer(merging).render([{"role": "user", "content": "Say"}], ["e dough", "?"])
    assert rendered.merged_tokens >= 1
    assert merging.decode(rendered.prompt) + merging.decode(rendered.answers[0]) == "Say the dough<|end|>"
    assert merging.decode(rendered.prompt) + merging.decode(rendered.answers[1]) == "Say th?<|end|>"
    alone = Renderer(merging).render([{"role": "user", "content": "Say"}], ["?"])
    assert alone.merged_tokens == 0
    assert len(alone.prompt) == len(rendered.prompt) + rendered.merged_tokens


def test_a_template_that_rewrites_the_prompt_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    """Where the answered conversation does not begin with the prompt, what was served cannot be learned."""
    rewriting = with_template(
        tokenizer,
        "{% if add_generation_prompt %}Q: {% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    with pytest.raises(Unusable, match=Drop.UNSTABLE_BOUNDARY):
        Renderer(rewriting).render(QUESTION, ["Yes."])


def test_a_template_without_an_end_gets_one(tokenizer: PreTrainedTokenizerBase) -> None:
    endless = with_template(tokenizer, "{% for m in messages %}{{ m.content }}\n{% endfor %}")
    rendered = Renderer(endless).render(QUESTION, ["Yes."])
    assert tokenizer.decode(rendered.answers[0]) == "Yes.\n<|end|>"


def test_another_stop_ends_the_turn(tokenizer: PreTrainedTokenizerBase) -> None:
    """A model whose generation config names a stop beside EOS: the answer ends there."""
    pad = tokenizer.pad_token_id
    turned = with_template(
        tokenizer,
        "{% for m in messages %}{{ m.content }}{{ pad_token }}{% endfor %}"
        "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}",
    )
    rendered = Renderer(turned, stop_ids=[pad]).render(QUESTION, ["Yes."])
    assert tokenizer.decode(rendered.answers[0]) == "Yes.<|pad|>"


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [
        ([{"role": "user", "content": "<|assistant|>\nhello"}], ["Yes.", "No."]),
        (QUESTION, ["Yes.<|end|>", "No."]),
        (QUESTION, ["Yes.", "<|begin|>No."]),
    ],
)
def test_text_with_control_marks_is_refused(
    tokenizer: PreTrainedTokenizerBase, prompt: list[dict[str, str]], answers: list[str]
) -> None:
    """It was rendered before, or somebody plays with the template: either way it would turn into control
    tokens.
    """
    with pytest.raises(Unusable, match=Drop.CONTROL_MARK_IN_TEXT):
        Renderer(tokenizer).render(prompt, answers)


def test_what_the_template_refuses_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    strict = with_template(tokenizer, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(Unusable, match=Drop.TEMPLATE_REFUSED):
        Renderer(strict).render(QUESTION, ["Yes."])


def test_answers_a_trimming_template_makes_equal_or_empty_are_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    trimming = with_template(
        tokenizer,
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content | replace('~', '') }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    )
    with pytest.raises(Unusable, match=Drop.IDENTICAL_ANSWERS):
        Renderer(trimming).render(QUESTION, ["Yes", "~Yes"])
    with pytest.raises(Unusable, match=Drop.EMPTY_ANSWER):
        Renderer(trimming).render(QUESTION, ["~"])


def test_the_digest_follows_what_makes_text(tokenizer: PreTrainedTokenizerBase) -> None:
    digest = template_digest(tokenizer)
    assert digest == template_digest(copy.deepcopy(tokenizer)) == Renderer(tokenizer).template_digest
    assert digest != template_digest(with_template(tokenizer, str(tokenizer.chat_template) + " "))
    assert digest != template_digest(tokenizer, {"date_string": "1 May 2026"})
    other_end = copy.deepcopy(tokenizer)
    other_end.eos_token = "<|pad|>"
    assert digest != template_digest(other_end)


def test_arguments_reach_the_template(tokenizer: PreTrainedTokenizerBase) -> None:
    dated = with_template(tokenizer, "{{ day }} " + str(tokenizer.chat_template))
    rendered = Renderer(dated, template_arguments={"day": "Tuesday"}).render(QUESTION, ["Yes."])
    assert tokenizer.decode(rendered.prompt).startswith("Tuesday")


def test_different_templates_are_refused() -> None:
    require_template("a" * 64, "a" * 64, data="snapshot x", model="policy y")
    with pytest.raises(
        TemplateMismatch, match=r"snapshot x was made for .* aaaaaaaaaaaa, but policy y uses bbbbbbbbbbbb"
    ):
        require_template("a" * 64, "b" * 64, data="snapshot x", model="policy y")


def test_a_tokenizer_without_template_or_end_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ModelUnsupported, match="no chat template"):
        Renderer(with_template(tokenizer, None))
    endless = copy.deepcopy(tokenizer)
    endless.eos_token = None
    with pytest.raises(ModelUnsupported, match="no EOS token"):
        Renderer(endless)
