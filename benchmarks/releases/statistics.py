"""The tables of docs/releases.md: `python -m benchmarks.releases.statistics TABLE [releases]`.

TABLE is `alike`, `worse`, `edge`, `users`, `small` or `returning`.
"""

import sys
from pathlib import Path

import numpy as np

from gateway.releases.betting import shown
from gateway.releases.confidence import excess, planned_bets
from gateway.releases.plan import ReleasePlan, Stage, load_release_plan
from gateway.releases.simulate import World, metric_times, simulate

PLAN = Path(__file__).parents[2] / "deploy" / "releases" / "default.toml"
WORLDS = {
    "errors": World(0.005, 0.1),
    "latency": World(4.0, 0.5),
    "first_token": World(0.4, 0.4),
    "inter_token": World(0.03, 0.3),
    "length": World(250.0, 0.5, noise=0.6),
    "cost": World(1_200.0, 0.5, noise=0.6),
    "truncation": World(0.02, 0.1),
    "repetition": World(0.01, 0.05),
    "refusal": World(0.04, 0.1),
    "thumbs": World(0.75, 0.2, answers=2),
    "rating": World(0.7, 0.2, answers=2),
    "retries": World(0.03, 0.1),
    "regenerations": World(0.04, 0.1),
    "escalations": World(0.005, 0.1),
    "abandoned": World(0.02, 0.1),
}
"""Users of production by metric. Measured users of each arm are counted, for thumbs those who gave one."""
EFFECTS = (("thumbs", 0.02), ("thumbs", 0.10), ("length", 0.20), ("errors", 0.01))
POWER = 0.8
LAST_USERS = 6_000
FEWEST, MOST = 1_000, 64_000
SEED = 20
MARGIN = 0.05


def whole(plan: ReleasePlan, releases: int, worse: float) -> None:
    """Whole releases of 100 looks; the candidate is worse in thumbs by so much, and else like production."""
    told = simulate(
        plan, WORLDS, {"thumbs": worse}, last_users=LAST_USERS, releases=releases, looks=100,
        rng=np.random.default_rng(SEED),
    )  # fmt: skip
    print(
        "| thumbs worse by | aborted | promoted | aborted by z-tests | promoted by z-tests | users for 80% |"
    )
    print("|-|-|-|-|-|-|")
    shares = (told.aborted, told.promoted, told.naive_aborted, told.naive_promoted)
    cells = " | ".join(f"{share:.1%}" for share in shares)
    needed = told.users_for(POWER)
    print(f"| {worse:g} | {cells} | {f'{needed:,.0f}' if np.isfinite(needed) else 'not reached'} |")


def alike(plan: ReleasePlan, releases: int) -> None:
    """A candidate that is like production."""
    whole(plan, releases, 0.0)


def worse(plan: ReleasePlan, releases: int) -> None:
    """A candidate that is worse by a whole margin."""
    whole(plan, releases, plan.metrics["thumbs"].margin)


def edge(plan: ReleasePlan, releases: int) -> None:
    """One metric at a time exactly at its bounds, in the last stage, with nothing else to stop it."""
    stage = plan.stages[-1]
    print("| metric | worse by the margin, shown to be within | worse by the harm bound, shown to be above |")
    print("|-|-|-|")
    for name in WORLDS:
        metric = plan.metrics[name]
        shares: list[float] = []
        for worse, claim in ((metric.margin, "passed"), (metric.harm, "harm")):
            rng = np.random.default_rng(SEED)
            times = [
                metric_times(plan, stage, name, WORLDS[name], worse, LAST_USERS, 100, 100, rng)
                for _ in range(releases // 100)
            ]
            shares.append(float(np.isfinite(np.concatenate([getattr(part, claim) for part in times])).mean()))
        print(f"| {name} | {shares[0]:.1%} | {shares[1]:.2%} |", flush=True)


def users(plan: ReleasePlan, releases: int) -> None:
    """Measured users of the canary after which 80% of the harmful candidates were aborted."""
    canaries = [stage for stage in plan.stages if stage.kind == "canary"]
    print("| harm | " + " | ".join(stage.name for stage in canaries) + " |")
    print("|-|" + "-|" * len(canaries))
    for name, worse in EFFECTS:
        needed = [users_needed(plan, stage, name, worse, releases) for stage in canaries]
        cells = [f"{number:,.0f}" if np.isfinite(number) else f"over {MOST:,}" for number in needed]
        print(f"| {name} worse by {worse:g} | " + " | ".join(cells) + " |", flush=True)


def users_needed(plan: ReleasePlan, stage: Stage, name: str, worse: float, releases: int) -> float:
    """Measured users of the canary until 80% of the candidates were aborted; infinity above `MOST`.

    Every metric is taken to be looked at in every stage.
    """
    metrics = {other: metric.model_copy(update={"stages": ()}) for other, metric in plan.metrics.items()}
    everywhere = plan.model_copy(update={"metrics": metrics})
    most, found = FEWEST, np.inf
    while not np.isfinite(found) and most <= MOST:
        rng = np.random.default_rng(SEED)
        times = [
            metric_times(everywhere, stage, name, WORLDS[name], worse, most, 4, 100, rng).harm
            for _ in range(releases // 4)
        ]
        found = float(np.quantile(np.concatenate(times), POWER, method="inverted_cdf"))
        most *= 4
    return found


def small(plan: ReleasePlan, releases: int) -> None:
    """Measured users of an arm until 80% of the candidates were promoted, or aborted, by the small plan."""
    del plan
    chosen = load_release_plan(PLAN.with_name("small.toml"))
    alike = simulate(
        chosen, WORLDS, {}, last_users=FEWEST, releases=releases, looks=100, rng=np.random.default_rng(SEED)
    )  # fmt: skip
    print("| candidate | users |")
    print("|-|-|")
    print(f"| like production, promoted | {alike.users_for(POWER):,.0f} |")
    for name, worse, words in (("length", 1.0, "answers at twice the length"), ("errors", 0.5, "half fail")):
        rng = np.random.default_rng(SEED)
        times = metric_times(chosen, chosen.stages[-1], name, WORLDS[name], worse, FEWEST, releases, 100, rng)
        needed = float(np.quantile(times.harm, POWER, method="inverted_cdf"))
        print(f"| {words}, aborted | {needed:,.0f} |")


def returning(plan: ReleasePlan, releases: int) -> None:
    """Users who come back, so that their means change from look to look, which the theory does not cover.

    One metric, 1,000 users an arm who come at any of 100 looks and answer at each later one with some chance;
    each end alone, over all looks.
    """
    del plan
    print("| answers at a later look | correlation within a user | called worse | called within the margin |")
    print("|-|-|-|-|")
    for again in (0.02, 0.1, 0.5):
        for spread in (0.2, 0.6):
            world = World(0.25, spread)
            harm = _share_wrong(world, again, 0.0, 1, releases)
            passed = _share_wrong(world, again, MARGIN, -1, releases)
            print(f"| {again:.0%} | {spread} | {harm:.1%} | {passed:.1%} |", flush=True)


def _share_wrong(world: World, again: float, worse: float, sign: int, releases: int) -> float:
    """Share of comparisons in which a false claim at 5% is made at any look."""
    rng = np.random.default_rng(SEED)
    return sum(_is_wrong(world, again, worse, sign, rng) for _ in range(releases)) / releases


def _is_wrong(world: World, again: float, worse: float, sign: int, rng: np.random.Generator) -> bool:
    arrivals, looks, total = 1_000, 100, 1 / world.spread - 1
    came = np.sort(rng.integers(0, looks, arrivals))
    levels = np.array([[world.level + worse], [world.level]])
    chances = rng.beta(levels * total, (1 - levels) * total, (2, arrivals))
    counts, sums = np.zeros((2, arrivals)), np.zeros((2, arrivals))
    for look in range(looks):
        here = came <= look
        new = (came == look) | (here & (rng.random((2, arrivals)) < again))
        counts += new
        sums += new & (rng.random((2, arrivals)) < chances)
        own, other = (sums / np.maximum(counts, 1))[:, here]
        told = excess("difference", own, other, worse)
        bets = MARGIN * planned_bets("difference", own, other, 1.0)
        if shown(sign * told.z, told.floor if sign > 0 else told.ceiling, bets, 0.05):
            return True
    return False


def main(what: str, releases: int = 2_000) -> None:
    """Prints one table."""
    plan = load_release_plan(PLAN)
    tables = {"alike": alike, "worse": worse, "edge": edge, "users": users, "small": small,
              "returning": returning}  # fmt: skip
    tables[what](plan, releases)


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:3]))
