"""Pairs of answers and their verdicts: asked of a judge in both orders, or of evaluation raters."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from evaluator.figures import Judged
from evaluator.judge.client import JudgeClient, JudgeEndpoint
from evaluator.judge.pairwise import JudgeFailed, PairVerdict, combine, tally_verdicts
from evaluator.judge.parse import read_choice
from evaluator.judge.templates import Template
from evaluator.scorers.outcome import Answer
from evaluator.statistics.length_controlled import LengthedVerdict
from evaluator.statistics.winrate import Result
from evaluator.suites.items import Item
from ratchet.db.models.evaluation import VerdictRow
from ratchet.prompts import message_text


@dataclass(frozen=True, slots=True)
class Contest:
    """Two answers to one item."""

    candidate: str
    other: str
    item: Item
    mine: Answer
    theirs: Answer
    dimension: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it within a run."""
        return self.candidate, self.other, self.item.suite, self.item.name

    def row(self, source: str, verdict: PairVerdict, shown: tuple[str | None, str | None]) -> dict[str, Any]:
        """Its verdict as a row."""
        return {
            "candidate": self.candidate,
            "other": self.other,
            "suite": self.item.suite,
            "item": self.item.name,
            "source": source,
            "dimension": self.dimension,
            "prompt_hash": self.item.prompt_hash,
            "shown_first": shown[0],
            "shown_second": shown[1],
            "result": verdict.result,
            "agreed": verdict.agreed,
            "reason": verdict.reason,
            "candidate_length": len(self.mine.text),
            "other_length": len(self.theirs.text),
        }


def question_of(item: Item) -> str:
    """The conversation as a judge reads it: the text itself where it is one message, else with its roles."""
    if len(item.messages) == 1:
        return message_text(item.messages[0])
    return "\n\n".join(f"{message['role']}: {message_text(message)}" for message in item.messages)


def decided_without_a_judge(contest: Contest) -> PairVerdict | None:
    """A tie where the answers are the same; nothing where they are not."""
    if contest.mine.text.strip() != contest.theirs.text.strip():
        return None
    return PairVerdict(contest.item.prompt_hash, "tie", True, "the answers are the same")


async def ask_judge(
    endpoint: JudgeEndpoint, templates: Mapping[str, Template], contests: Sequence[Contest]
) -> AsyncGenerator[dict[str, Any]]:
    """The verdicts of a judge on contests, as rows: each in both orders, given as soon as both are there.

    Args:
        endpoint: Of the judge; its concurrency bounds what is under way.
        templates: Its prompts, by dimension.
        contests: What is asked.
    """
    async with JudgeClient(endpoint) as client:

        async def one(contest: Contest) -> dict[str, Any]:
            template, question = templates[contest.dimension], question_of(contest.item)
            mine, theirs = contest.mine.text, contest.theirs.text
            prompts = [template.render(question, mine, theirs), template.render(question, theirs, mine)]
            forward, backward = (read_choice(reply) for reply in await client.ask_all(prompts))
            verdict = combine(contest.item.prompt_hash, forward, backward)
            return contest.row("judge", verdict, (forward.choice, backward.choice))

        tasks = [asyncio.ensure_future(one(contest)) for contest in contests]
        try:
            for next_done in asyncio.as_completed(tasks):
                yield await next_done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def judged_of(rows: Sequence[VerdictRow], candidate: str, *, bound: bool = True) -> tuple[Judged, ...]:
    """The verdicts on one candidate, by suite and other policy.

    Args:
        rows: Of a run.
        candidate: Whose.
        bound: Whether too many unscored ones are an error.

    Raises:
        JudgeFailed: More are unscored than a run may have.
    """
    groups: dict[tuple[str, str, str], list[VerdictRow]] = {}
    for row in rows:
        if row.candidate == candidate:
            groups.setdefault((row.suite, row.other, row.source), []).append(row)
    judged: list[Judged] = []
    for (suite, other, source), found in groups.items():
        if bound:
            try:
                tally_verdicts(
                    [PairVerdict(one.prompt_hash, _result(one), one.agreed, one.reason) for one in found]
                )
            except JudgeFailed as error:
                raise JudgeFailed(f"{candidate} against {other} on {suite}: {error}") from error
        told = [one for one in found if one.result is not None]
        judged.append(
            Judged(
                suite,
                other,
                source,
                tuple(
                    LengthedVerdict(
                        one.prompt_hash, result, float(one.candidate_length), float(one.other_length)
                    )
                    for one in told
                    if (result := _result(one)) is not None
                ),
                len(found) - len(told),
                sum(one.agreed is False for one in told),
            )
        )
    return tuple(judged)


def _result(row: VerdictRow) -> Result | None:
    return cast("Result | None", row.result)
