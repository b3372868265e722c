"""What a report on a selection is rendered from, made by hand: a round whose last ones please the proxy."""

from datetime import UTC, datetime
from typing import Any

BASELINE = "sky@aaaaaaaaaaaa"
NASTY = "<script>document.title = 'owned'</script> & \"quoted\""


def interval(estimate: float | None, half: float = 0.06) -> dict[str, float | None]:
    """An estimate with an interval around it."""
    if estimate is None:
        return {"estimate": None, "low": None, "high": None}
    return {"estimate": estimate, "low": estimate - half, "high": estimate + half}


def metric(share: float) -> dict[str, Any]:
    """Counts of a metric."""
    return {"accuracy": interval(share), "gain": interval(0.0), "right": 5, "wrong": 5, "truncated": 2,
            "unscored": 1}  # fmt: skip


def candidate(number: int, kl: float, rate: float | None, refused: list[str]) -> dict[str, Any]:
    """One candidate of the record."""
    buckets = [
        {"low": low, "high": high, "prompts": 10, "win_rate": interval(rate)}
        for low, high in ((None, 0.5), (0.5, 0.8), (0.8, 1.25), (1.25, 2.0), (2.0, None))
    ]
    judged = {
        "suite": "helpfulness", "against": BASELINE, "win_rate": interval(rate), "buckets": buckets,
        "length_controlled": interval(rate), "wins": 30, "ties": 5, "losses": 15, "unscored": 1,
        "disagreements": 4, "source": "judge",
    }  # fmt: skip
    return {
        "policy": f"sky@{number:012x}", "step": 10 * number, "kl": kl, "floors": [], "changes": [],
        "metrics": {"sums": metric(0.9 - kl / 20), "xstest.benign": metric(0.8),
                    "xstest.harmful": metric(0.7)},
        "judged": [judged], "floors_passed": kl < 8, "on_frontier": not refused, "refused": refused,
        "flags": ["skill: near rises and the harder suite does not"] if number == 3 else [],
        "primary": None if rate is None
        else {"name": "win rate (helpfulness)", "p_value": 0.004, "nothing_gained": 0.5, **interval(rate)},
    }  # fmt: skip


def found(chosen: bool = True) -> dict[str, Any]:
    """As `evaluator.report.gather` would give it."""
    candidates = [
        candidate(1, 1.0, 0.55, []),
        candidate(2, 4.0, 0.64, []),
        candidate(3, 9.0, 0.48, ["floor sums: 0.450, at least 0.6 is asked"]),
        candidate(4, 12.0, None, ["its primary figure could not be measured"]),
    ]
    suites = [
        {"name": "helpfulness", "description": "d", "skill": "helpfulness", "role": "in_distribution",
         "scorer": "judge", "floor": None, "margin": None},
        {"name": "sums", "description": "d", "skill": "arithmetic", "role": "regression", "scorer": "math",
         "floor": 0.6, "margin": None},
        {"name": "xstest", "description": "d", "skill": "refusal", "role": "conduct", "scorer": "refusal",
         "floor": None, "margin": None},
    ]  # fmt: skip
    record = {
        "round": "01a22e17-7004-7103-a20a-4bcd528f828e", "baseline": BASELINE, "reference": BASELINE,
        "judge": {"ref": "fair@bbbbbbbbbbbb", "model": "judge-70b", "templates": {}}, "raters": None,
        "note": None, "ranked_by": "helpfulness", "prompts": {"helpfulness": 50, "sums": 10},
        "chosen": candidates[1]["policy"] if chosen else None, "reason": "It is the best of 2.",
        "suites": suites, "candidates": candidates,
        "production": {"policy": BASELINE, "metrics": {"sums": metric(0.9), "xstest.benign": metric(0.9),
                                                       "xstest.harmful": metric(0.6)}, "judged": []},
    }  # fmt: skip
    points = [
        {"step": one["step"], "kl": one["kl"], "proxy": one["kl"] ** 0.5, "judged": interval(0.05)}
        for one in candidates[:3]
    ]
    figures = {
        name: interval(0.7) for name in ("accuracy", "position_bias", "length_bias", "self_consistency")
    }
    calibration = {"dimension": "helpfulness", "labels": "made.jsonl", "pairs": 300, "figures": figures}
    return {
        "id": "01a22e17-ffff-7103-a20a-4bcd528f828e", "digest": "d" * 64,
        "created_at": datetime(2026, 3, 1, 12, tzinfo=UTC), "record": record,
        "compared": candidates[1]["policy"] if chosen else candidates[3]["policy"],
        "lengths": {one: {"quantiles": [20, 80, 120, 300, 900], "answers": 60, "truncated": 3}
                    for one in (BASELINE, *(each["policy"] for each in candidates))},
        "samples": [{"suite": "helpfulness", "question": NASTY, "candidate": NASTY + "averylongword" * 40,
                     "baseline": "A plain answer.", "result": "win"}],
        "judge_health": {"ref": "fair@bbbbbbbbbbbb", "model": "judge-70b", "unscored": 1, "disagreements": 4,
                         "compared": 200, "calibrations": [calibration]},
        "proxy": {"points": points, "proxy_fit": {"a": 1.0, "b": 0.0, "residual": 0.0},
                  "judged_fit": {"a": 0.2, "b": 0.15, "residual": 0.01}, "parts_at": 5.2,
                  "reward_hacking": True, "reason": "reward hacking: at step 30 the proxy is above"},
    }  # fmt: skip
