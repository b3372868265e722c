"""The report as one HTML file that needs nothing else: readable by someone who was not there."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from evaluator.report.charts import Dot, bars, fit_of, frontier, spreads
from ratchet.look import css


def render(found: Mapping[str, Any]) -> str:
    """The page.

    Args:
        found: As `evaluator.report.gather` gives it.
    """
    environment = Environment(
        loader=PackageLoader("evaluator.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(interval=interval_words, share=share, moment=moment)
    record = found["record"]
    return environment.get_template("selection.html").render(
        css=css(), found=found, record=record, charts=_charts(found), refusals=_refusals(record),
        tasks=_tasks(record), fits=_fits(found["proxy"]),
    )  # fmt: skip


def interval_words(value: Mapping[str, float | None] | None, percent: bool = True) -> str:
    """An estimate with its interval, `unknown` where there is none."""
    if value is None or value["estimate"] is None:
        return "unknown"
    form = "{:.1%}" if percent else "{:.3g}"
    said = form.format(value["estimate"])
    if value["low"] is None or value["high"] is None:
        return said
    return f"{said} [{form.format(value['low'])}, {form.format(value['high'])}]"


def share(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{value:.1%}"


def moment(value: datetime) -> str:
    """A time in UTC."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _charts(found: Mapping[str, Any]) -> dict[str, Any]:
    record, proxy = found["record"], found["proxy"]
    candidates = record["candidates"]
    told = [one for one in candidates if one["primary"] is not None]
    first = told[0]["primary"] if told else None
    charts: dict[str, Any] = {
        "frontier": frontier(
            [_dot(one, one["primary"], record["chosen"]) for one in told],
            title="Candidates by KL and by what ranks them",
            y_title=first["name"] if first else "",
            level=None if first is None else first["nothing_gained"],
            level_words="as good as production",
            fit=None if proxy is None else fit_of(proxy["judged_fit"]),
        ),
        "proxy": None if proxy is None else frontier(
            [Dot(point["kl"], {"estimate": point["proxy"], "low": None, "high": None},
                 f"step {point['step']}: proxy {point['proxy']:+.3g}", "other") for point in proxy["points"]],
            title="The proxy reward's difference from the reference by KL",
            y_title="proxy reward minus the reference's",
            level=0.0, level_words="the reference", fit=fit_of(proxy["proxy_fit"]), percent=False,
        ),
        "buckets": _buckets(found),
        "lengths": spreads(
            [(policy, lengths["quantiles"], _kind(policy, record))
             for policy, lengths in sorted(found["lengths"].items())],
            title="Length of answers in characters",
        ),
    }  # fmt: skip
    return charts


def _buckets(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    charts: list[tuple[str, str]] = []
    for one in found["record"]["candidates"]:
        if one["policy"] != found["compared"]:
            continue
        for judged in one["judged"]:
            rows = [
                (_bucket_words(bucket), bucket["win_rate"], f"{bucket['prompts']} prompts")
                for bucket in judged["buckets"]
            ]
            rows.append(("all answers", judged["win_rate"], ""))
            rows.append(("length controlled", judged["length_controlled"], ""))
            title = f"{judged['suite']}: win rate of {one['policy']} over {judged['against']}"
            charts.append((title, bars(rows, title=title, middle=0.5)))
    return charts


def _bucket_words(bucket: Mapping[str, Any]) -> str:
    low, high = bucket["low"], bucket["high"]
    if low is None:
        return f"under {high:g} times as long"
    if high is None:
        return f"at least {low:g} times as long"
    return f"{low:g} to {high:g} times as long"


def _dot(candidate: Mapping[str, Any], value: Mapping[str, Any], chosen: str | None) -> Dot:
    kind = "other"
    if candidate["on_frontier"]:
        kind = "frontier"
    if candidate["policy"] == chosen:
        kind = "chosen"
    ends = {end: value[end] for end in ("estimate", "low", "high")}
    return Dot(candidate["kl"], ends, f"{candidate['policy']}: {interval_words(ends)}", kind)


def _kind(policy: str, record: Mapping[str, Any]) -> str:
    if policy == record["chosen"]:
        return "chosen"
    return "baseline" if policy == record["baseline"] else "other"


def _refusals(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Refusal of each policy, benign and harmful prompts apart; right means answered and refused."""
    found: list[dict[str, Any]] = []
    for suite in (one["name"] for one in record["suites"] if one["scorer"] == "refusal"):
        for policy in (record["production"], *record["candidates"]):
            benign, harmful = (policy["metrics"][f"{suite}.{kind}"] for kind in ("benign", "harmful"))
            found.append(
                {
                    "suite": suite,
                    "policy": policy["policy"],
                    "benign": _complement(benign["accuracy"]),
                    "harmful": harmful["accuracy"],
                    "truncated": benign["truncated"] + harmful["truncated"],
                }
            )
    return found


def _complement(value: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        end: None if value[other] is None else 1 - float(value[other] or 0.0)
        for end, other in (("estimate", "estimate"), ("low", "high"), ("high", "low"))
    }


def _tasks(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every metric, a row for each, with production and the candidates beside each other."""
    roles = {suite["name"]: suite for suite in record["suites"]}
    return [
        {
            "name": name,
            "suite": roles[name.partition(".")[0]],
            "production": metric,
            "candidates": [one["metrics"][name] for one in record["candidates"]],
        }
        for name, metric in record["production"]["metrics"].items()
    ]


def _fits(proxy: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if proxy is None:
        return []
    named = (("proxy", proxy["proxy_fit"]), ("held-out figure", proxy["judged_fit"]))
    return [
        (name, "fewer than three distances: nothing is fitted" if fit is None
         else f"R(d) = d ({fit['a']:.3g} - {fit['b']:.3g} log d), leaves {fit['residual']:.2g}")
        for name, fit in named
    ]  # fmt: skip
