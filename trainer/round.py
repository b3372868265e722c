"""One round, top to bottom: snapshot -> reference -> steps -> checkpoints on a KL schedule -> candidates."""

import fcntl
import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch

from ratchet.artifacts import address
from ratchet.canonical import digest_of_file
from ratchet.errors import AlreadyRunning, ConfigError
from ratchet.model_folder import inspect
from trainer.adapters import adapt
from trainer.algorithms import Algorithm, algorithm_of
from trainer.attention import BranchAttention
from trainer.checkpoints import CHECKPOINTS, Identity, Progress, resume, save, step_name
from trainer.config import ReferenceWay, RoundConfig, parse
from trainer.data.order import steps_of
from trainer.durable import INCOMING, write_text
from trainer.engine import Engine, without_dropout
from trainer.errors import RoundFailed, SnapshotRefused
from trainer.knowledge import checked
from trainer.learning import Learned, Learner, seed_of
from trainer.material import Material, check_folders, read_material
from trainer.memory import peak_device_bytes, peak_memory_bytes
from trainer.publish import export
from trainer.reference import Reference, Rows
from trainer.sampling import Distance, measure
from trainer.schedule import KlSchedule, learning_rate
from trainer.sink import CheckpointRecord, FolderSink, SilentSink, Sink, Summary
from trainer.world import World, join

CONFIG = "config.json"
SUMMARY = "summary.json"
MakeSink = Callable[[Path], Sink]


def prepare(config: RoundConfig, folder: Path) -> None:
    """Makes a round's folder, ready to be run or resumed.

    Raises:
        ConfigError: The folder is another round's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / CONFIG).exists() and configuration(folder) != config:
        raise ConfigError(f"{folder} is the folder of another round: choose a new one")
    write_text(folder / CONFIG, json.dumps(config.content(), indent=2) + "\n")


def configuration(folder: Path) -> RoundConfig:
    """The configuration of a round's folder.

    Raises:
        ConfigError: There is none.
    """
    try:
        values = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is no round's folder: {CONFIG} cannot be read: {error}") from error
    return parse(values, source=str(folder / CONFIG))


def run_round(folder: Path, make_sink: MakeSink = FolderSink) -> Summary:
    """Runs a round, or goes on with it where its newest save left it; every rank calls this.

    Args:
        folder: From `prepare`. Gets `state`, `checkpoints`, `reference` and, in the end, `summary.json`.
        make_sink: Called in rank 0.

    Returns:
        The same on every rank.

    Raises:
        RatchetError: The round cannot start, or go on; what was saved is whole.
    """
    began = perf_counter()
    config = configuration(folder)
    world = join()
    with _alone(folder, world):
        sink = make_sink(folder) if world.first else SilentSink()
        algorithm = algorithm_of(config)
        model_digest, reference_digest = _digests(config, world)
        material = read_material(config, algorithm)
        _require_measurable(config, material, sink)

        reference = Reference(
            config, algorithm, world, reference_digest, config.cache or folder / "reference"
        )
        adapter = config.reference_policy.way is ReferenceWay.ADAPTER
        known = None if adapter else _reference_rows(algorithm, reference, material)
        engine = _engine(config, algorithm, world)
        attention = BranchAttention(engine.model)
        if adapter:
            reference.inside(engine, attention)
            known = _reference_rows(algorithm, reference, material)

        if config.data.knowledge is not None:
            material = checked(engine, config, config.data.knowledge, material, folder)

        learner = Learner(
            config, algorithm, engine, attention, material.train, known and known[0], material.pad_id
        )
        identity = Identity(config.digest, reference_digest, material.train.digest, world.size)
        progress = resume(engine, folder, identity)
        total = _total_steps(config, material)
        sink.started(progress.step, total, material.use)
        for record in progress.records:
            sink.checkpoint(record)
        measuring = _Measuring(config, algorithm, learner, reference, material, known and known[1])
        if progress.step == 0:
            measuring.begin(sink, same=model_digest == reference_digest)

        schedule = KlSchedule(config.checkpoints.kl_at, config.checkpoints.kl_budget, progress.kl_reached)
        reason = "complete"
        while progress.step < total and reason == "complete":
            rate = learning_rate(config.optim, progress.step, total)
            learned = learner.learn(progress.step, rate, stop=sink.control() == "stop")
            _advance(progress, learned)
            figures = _figures(learned, rate)
            reason = _reason_to_stop(config, progress, learned, sink)

            due, ends = _due(config.checkpoints.every, progress), progress.step == total
            measures = due or ends or reason != "complete" or _due(config.checkpoints.measure_every, progress)
            distance = measuring.distance(progress.step) if measures else None
            if reason != "diverged" and distance and schedule.spent(distance.kl.k3.value):
                reason = "kl_budget"
            last = ends or reason != "complete"
            wanted = distance is not None and schedule.passes(distance.kl.k3.value)
            if last or wanted or due:
                validation = measuring.validation()
                figures |= _validation_figures(validation)
                reference.check()
                candidate = folder / CHECKPOINTS / step_name(progress.step)
                export(engine, config.model, candidate)
                record = _record(algorithm, candidate, progress.step, distance, validation, world, last=last)
                progress.records.append(record)
                progress.kl_reached = schedule.reached
                save(engine, folder, identity, progress)
                sink.checkpoint(record)
            elif _due(config.checkpoints.save_every, progress):
                progress.kl_reached = schedule.reached
                save(engine, folder, identity, progress)
            sink.metrics(progress.step, figures | _distance_figures(distance))

        summary = _summary(progress, reason, material, world, perf_counter() - began)
        if world.first:
            write_text(folder / SUMMARY, json.dumps(asdict(summary), default=str, indent=2) + "\n")
        sink.finished(summary)
        world.wait()
        return summary


@contextmanager
def _alone(folder: Path, world: World) -> Iterator[None]:
    """Holds the folder: two rounds in one would write over each other."""
    if not world.first:
        yield
        return
    with (folder / "trainer.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(f"{folder}: this round is running already; stop it first") from error
        for abandoned in (*folder.glob(f"{INCOMING}*"), *folder.glob(f"*/{INCOMING}*")):
            shutil.rmtree(abandoned, ignore_errors=True)
        yield


def _digests(config: RoundConfig, world: World) -> tuple[str, str]:
    found: tuple[str, str] = world.from_first(check_folders(config) if world.first else None)
    return found


def _require_measurable(config: RoundConfig, material: Material, sink: Sink) -> None:
    if material.validation is not None:
        return
    if config.checkpoints.kl_budget is not None:
        raise SnapshotRefused(
            "the snapshot has no usable validation rows, so KL cannot be measured and checkpoints.kl_budget "
            "cannot be kept: widen the snapshot, or leave the budget out"
        )
    sink.alarm("no_validation", "no validation rows: neither KL nor accuracy is measured in this round")


def _reference_rows(
    algorithm: Algorithm, reference: Reference, material: Material
) -> tuple[Rows, Rows | None] | None:
    """The reference's values of both splits; None where the method does not use them."""
    if not algorithm.uses_reference:
        return None
    train = reference.values(material.train, material.pad_id)
    validation = material.validation
    return train, None if validation is None else reference.values(validation, material.pad_id)


def _engine(config: RoundConfig, algorithm: Algorithm, world: World) -> Engine:
    dtype = torch.bfloat16 if config.engine.precision == "bf16" else torch.float32
    model = algorithm.load(config.model, dtype).eval()
    without_dropout(model)
    if config.lora is not None:
        adapt(model, config.lora, seed_of(config.seed, "adapters"), algorithm.trained_whole)
    return Engine(model, config.optim, config.engine, world)


def _total_steps(config: RoundConfig, material: Material) -> int:
    if config.optim.steps is not None:
        return config.optim.steps
    return steps_of(config.optim.epochs or 1.0, examples=len(material.train), batch=config.optim.batch)


def _due(every: int | None, progress: Progress) -> bool:
    return bool(every) and progress.step % (every or 1) == 0


def _advance(progress: Progress, learned: Learned) -> None:
    progress.step += 1
    progress.examples += learned.examples
    progress.tokens += learned.tokens
    progress.seconds += learned.seconds
    if progress.first_loss is None:
        progress.first_loss = learned.loss


def _reason_to_stop(config: RoundConfig, progress: Progress, learned: Learned, sink: Sink) -> str:
    alarms = config.alarms
    progress.flat_steps = progress.flat_steps + 1 if learned.gradient_norm < alarms.gradient_floor else 0
    if progress.flat_steps == alarms.gradient_floor_steps:
        sink.alarm(
            "gradient_floor",
            f"step {progress.step}: the gradient norm has been below {alarms.gradient_floor:g} for "
            f"{progress.flat_steps} steps; nothing is learned: look at the data, and at loss and beta",
        )
    first = progress.first_loss or 0.0
    diverged = first > 0 and learned.loss > alarms.divergence_factor * first
    progress.diverged_steps = progress.diverged_steps + 1 if diverged else 0
    if progress.diverged_steps >= alarms.divergence_steps:
        sink.alarm(
            "diverged",
            f"step {progress.step}: the loss is {learned.loss:.3g}, more than {alarms.divergence_factor:g} "
            f"times the first step's {first:.3g}, for {progress.diverged_steps} steps: lower optim.lr",
        )
        return "diverged"
    return "control" if learned.stop else "complete"


@dataclass
class _Measuring:
    """What is measured of a policy on validation rows."""

    config: RoundConfig
    algorithm: Algorithm
    learner: Learner
    reference: Reference
    material: Material
    known: Rows | None

    def begin(self, sink: Sink, *, same: bool) -> None:
        """Measures the untrained policy: where it is its own reference, the distance must be exactly zero."""
        distance, validation = self.distance(0), self.validation()
        if figures := _distance_figures(distance) | _validation_figures(validation):
            sink.metrics(0, figures)
        if same and distance is not None and (distance.kl.k1.value or distance.kl.k3.value):
            raise RoundFailed(
                f"the untrained policy is {distance.kl.k3.value:.3g} nats from itself: policy and reference "
                "do not compute alike on this machine, so no KL could be trusted"
            )

    def distance(self, step: int) -> Distance | None:
        """KL from the reference; None where it cannot be measured."""
        checkpoints = self.config.checkpoints
        prompts = self.material.prompts(checkpoints.kl_prompts)
        if not self.algorithm.is_policy or not prompts:
            return None
        return measure(
            self.learner.engine,
            self.learner.attention,
            self.reference,
            prompts,
            checkpoints,
            seed=seed_of(self.config.seed, "kl", step),
            capacity=self.config.optim.micro_tokens,
            stop_ids=self.material.stop_ids,
            pad_id=self.material.pad_id,
        )

    def validation(self) -> dict[str, float]:
        """The loss and the method's figures; none where there are no rows."""
        if self.material.validation is None:
            return {}
        return self.learner.validate(self.material.validation, self.known)


def _record(
    algorithm: Algorithm,
    path: Path,
    step: int,
    distance: Distance | None,
    validation: dict[str, float],
    world: World,
    *,
    last: bool,
) -> CheckpointRecord:
    kl = distance and distance.kl
    return CheckpointRecord(
        path=path,
        step=step,
        kl_k1=kl and kl.k1.value,
        kl_k1_se=kl and _known(kl.k1.error),
        kl_k3=kl and kl.k3.value,
        kl_k3_se=kl and _known(kl.k3.error),
        reward=validation.get("reward"),
        accuracy=validation.get("accuracy"),
        validation_loss=validation.get("loss"),
        length_quantiles=dict(distance.length_quantiles) if distance else {},
        digest=world.from_first(_digest_of_export(algorithm, path) if world.first else ""),
        is_last=last,
    )


def _digest_of_export(algorithm: Algorithm, folder: Path) -> str:
    if algorithm.is_policy:
        return inspect(folder).weights_digest
    return address({path.name: digest_of_file(path) for path in folder.iterdir() if path.is_file()})


def _figures(learned: Learned, rate: float) -> dict[str, float]:
    return {
        "loss": learned.loss,
        **learned.measures,
        "gradient_norm": learned.gradient_norm,
        "learning_rate": rate,
        "examples_per_second": learned.examples / learned.seconds,
        "tokens_per_second": learned.tokens / learned.seconds,
    }


def _validation_figures(validation: dict[str, float]) -> dict[str, float]:
    return {f"validation_{name}": value for name, value in validation.items()}


def _distance_figures(distance: Distance | None) -> dict[str, float]:
    if distance is None:
        return {}
    kl = distance.kl
    figures = {
        "kl_k1": kl.k1.value,
        "kl_k1_se": kl.k1.error,
        "kl_k3": kl.k3.value,
        "kl_k3_se": kl.k3.error,
        **{f"answer_tokens_q{name}": value for name, value in distance.length_quantiles.items()},
    }
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _known(error: float) -> float | None:
    return error if math.isfinite(error) else None


def _summary(progress: Progress, reason: str, material: Material, world: World, seconds: float) -> Summary:
    memory = world.every((peak_memory_bytes(), peak_device_bytes()))
    devices = [device for _, device in memory if device is not None]
    learning = progress.seconds or math.inf
    return Summary(
        steps=progress.step,
        reason=reason,
        data=material.use,
        checkpoints=tuple(progress.records),
        examples_per_second=progress.examples / learning,
        tokens_per_second=progress.tokens / learning,
        seconds=seconds,
        peak_memory_bytes=max(process for process, _ in memory),
        peak_device_bytes=max(devices, default=None),
    )
