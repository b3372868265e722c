"""What a suite asks, prompt by prompt, as a run freezes it: messages and what the scorer must know."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evaluator.suites.loaders import load_gsm8k, load_xstest, sample
from evaluator.suites.model import (
    CodeSuite,
    FileSource,
    FormatSuite,
    HeldOutSource,
    InstructionSuite,
    JudgedSuite,
    MatchSuite,
    MathItem,
    MathSuite,
    OverlongSuite,
    RefusalItem,
    RefusalSuite,
    Suite,
    SycophancySuite,
    ToolSuite,
    TrafficSource,
)
from ratchet.errors import ConfigError
from ratchet.prompts import Message, prompt_hash

NEUTRAL, ASSERTED = "neutral", "asserted"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt from rows."""

    name: str
    messages: tuple[Message, ...]


class PromptSource(Protocol):
    """Where prompts come from that are rows."""

    def held_out(self, suite: str | None, limit: int, seed: int) -> list[Prompt]:
        """A seeded sample of the held-out table, of one suite or of all prompts that are no suite's own."""
        ...

    def traffic(self, since_days: int, limit: int, seed: int) -> list[Prompt]:
        """A seeded sample of production traffic on the held-out side."""
        ...


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a run."""

    suite: str
    name: str
    """Unique within the suite."""
    messages: tuple[Message, ...]
    spec: dict[str, Any]
    """What the scorer needs to know, in JSON types."""

    @property
    def prompt_hash(self) -> str:
        """Of the normalised prompt: what clusters."""
        return prompt_hash(self.messages)


def freeze(suite: Suite, folder: Path, prompts: PromptSource) -> list[Item]:
    """Every prompt of a suite, in its order.

    Args:
        suite: The suite.
        folder: What paths of data files are relative to.
        prompts: Where prompts come from that are rows.

    Raises:
        ConfigError: A file cannot be read, the scorer cannot use the source, or no prompt is found.
    """
    match suite:
        case MathSuite() if isinstance(suite.source, FileSource) and suite.source.format == "gsm8k":
            math = sample(load_gsm8k(folder / suite.source.path), suite.source.limit, suite.source.seed)
            asked = [_item(suite, place, one.prompt, _math(one)) for place, one in enumerate(math)]
        case RefusalSuite() if isinstance(suite.source, FileSource) and suite.source.format == "xstest":
            both = sample(load_xstest(folder / suite.source.path), suite.source.limit, suite.source.seed)
            asked = [_item(suite, place, one.prompt, _refusal(one)) for place, one in enumerate(both)]
        case _ if suite.source is not None:
            traffic = {"from": "traffic"} if isinstance(suite.source, TrafficSource) else {}
            spec = {**_spec_of_source(suite), **traffic}
            asked = [
                Item(suite.name, one.name, one.messages, spec) for one in _from_source(suite, folder, prompts)
            ]
        case _:
            asked = _own(suite)
    if not asked:
        raise ConfigError(f"suite {suite.name}: its source holds no prompt yet; add some, or leave it out")
    return asked


def _own(suite: Suite) -> list[Item]:
    match suite:
        case MathSuite():
            return [_item(suite, place, one.prompt, _math(one)) for place, one in enumerate(suite.items)]
        case MatchSuite():
            return [
                _item(suite, place, one.prompt, {"accepted": one.accepted})
                for place, one in enumerate(suite.items)
            ]
        case InstructionSuite():
            return [
                _item(
                    suite, place, one.prompt, {"constraints": [each.model_dump() for each in one.constraints]}
                )
                for place, one in enumerate(suite.items)
            ]
        case FormatSuite():
            return [
                _item(suite, place, one.prompt, {"form": one.form.model_dump()})
                for place, one in enumerate(suite.items)
            ]
        case OverlongSuite():
            return [
                _item(suite, place, one.prompt, {"at_most_words": one.at_most_words})
                for place, one in enumerate(suite.items)
            ]
        case RefusalSuite():
            return [_item(suite, place, one.prompt, _refusal(one)) for place, one in enumerate(suite.items)]
        case ToolSuite():
            return [
                _item(suite, place, one.prompt, {"tool": one.tool, "result": one.result})
                for place, one in enumerate(suite.items)
            ]
        case CodeSuite():
            return [
                _item(suite, place, one.prompt, {"cases": [each.model_dump() for each in one.cases]})
                for place, one in enumerate(suite.items)
            ]
        case SycophancySuite():
            return [
                _item(
                    suite,
                    place,
                    one.neutral if side == NEUTRAL else one.asserted,
                    {"twin": f"{place:04}", "side": side, "truth": one.truth, "claim": one.claim},
                    side,
                )
                for place, one in enumerate(suite.items)
                for side in (NEUTRAL, ASSERTED)
            ]
        case JudgedSuite():
            return []


def _spec_of_source(suite: Suite) -> dict[str, Any]:
    match suite:
        case JudgedSuite():
            return {"dimension": suite.dimension}
        case InstructionSuite():
            return {"constraints": [each.model_dump() for each in suite.constraints]}
        case FormatSuite(form=form) if form is not None:
            return {"form": form.model_dump()}
        case OverlongSuite():
            return {}
        case _:
            raise ConfigError(
                f"suite {suite.name}: scorer {suite.scorer} needs to know each prompt's answer, which"
                " this source does not have"
            )


def _from_source(suite: Suite, folder: Path, prompts: PromptSource) -> Sequence[Prompt]:
    match suite.source:
        case FileSource() as source:
            path = folder / source.path
            loaded: Sequence[MathItem | RefusalItem] = (
                load_gsm8k(path) if source.format == "gsm8k" else load_xstest(path)
            )
            chosen = sample(list(loaded), source.limit, source.seed)
            return [Prompt(f"{place:04}", _said(one.prompt)) for place, one in enumerate(chosen)]
        case HeldOutSource() as source:
            return prompts.held_out(source.suite, source.limit, source.seed)
        case TrafficSource() as source:
            return prompts.traffic(source.days, source.limit, source.seed)
        case None:
            return []


def _item(suite: Suite, place: int, prompt: str, spec: dict[str, Any], side: str = "") -> Item:
    return Item(suite.name, f"{place:04}{'.' if side else ''}{side}", _said(prompt), spec)


def _said(prompt: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": prompt},)


def _math(item: MathItem) -> dict[str, Any]:
    return {"expected": item.expected}


def _refusal(item: RefusalItem) -> dict[str, Any]:
    return {"kind": item.kind}
