"""What a round works on: the snapshot in tokens, and the models' folders, checked before any is loaded."""

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig

from ratchet.model_folder import GENERATION, inspect
from trainer.algorithms.base import Algorithm
from trainer.config import RoundConfig
from trainer.data.examples import Examples
from trainer.data.order import examples_of_step
from trainer.data.render import Renderer
from trainer.data.snapshot import open_snapshot
from trainer.data.template import require_template
from trainer.data.truncate import Lengths
from trainer.errors import NoUsableRows, TemplateMismatch
from trainer.sampling import Tokens
from trainer.sink import DataUse


@dataclass(frozen=True)
class Material:
    """A snapshot in tokens.

    Attributes:
        snapshot: Its digest.
        train: What is learned from.
        validation: What is measured on; None where the snapshot has no usable validation rows.
        stop_ids: What ends an answer.
        pad_id: Fills batches; never told from a real token by its id.
    """

    snapshot: str
    train: Examples
    validation: Examples | None
    stop_ids: tuple[int, ...]
    pad_id: int

    @property
    def use(self) -> DataUse:
        """What became of the rows."""
        train = self.train.report
        validation = self.validation.report if self.validation is not None else None
        return DataUse(
            used=train.used,
            dropped={reason.value: count for reason, count in sorted(train.dropped.items())},
            validation_used=validation.used if validation else 0,
            validation_dropped={reason.value: count for reason, count in sorted(validation.dropped.items())}
            if validation
            else {},
            tokens=train.tokens,
            answer_tokens=train.answer_tokens,
            unknown=train.unknown,
        )

    def prompts(self, count: int) -> list[Tokens]:
        """The first `count` different validation prompts."""
        found = dict.fromkeys(example.prompt for example in self.validation or ())
        return list(found)[:count]


def read_material(config: RoundConfig, algorithm: Algorithm) -> Material:
    """Reads the snapshot with the model's own tokenizer and template.

    Raises:
        SnapshotRefused: The snapshot cannot be read, is of another kind, or has no usable training row.
        ModelUnsupported: The model's tokenizer has no template or no EOS.
    """
    snapshot = open_snapshot(config.snapshot, algorithm.snapshot_kind)
    tokenizer = AutoTokenizer.from_pretrained(config.model, local_files_only=True)
    stop_ids = stop_ids_of(config.model)
    renderer = Renderer(tokenizer, stop_ids=stop_ids)
    lengths = Lengths.of(config.data.max_length)
    train = algorithm.examples(f"{snapshot.path.name[:12]}, train", snapshot.train, renderer, lengths)
    validation = None
    if config.data.validation_rows:
        try:
            validation = _some(
                algorithm.examples(
                    f"{snapshot.path.name[:12]}, validation", snapshot.validation, renderer, lengths
                ),
                config.data.validation_rows,
                config.seed,
            )
        except NoUsableRows:
            validation = None
    pad_id = tokenizer.pad_token_id
    return Material(
        snapshot=snapshot.digest,
        train=train,
        validation=validation,
        stop_ids=tuple(sorted({renderer.eos_id, *stop_ids})),
        pad_id=renderer.eos_id if pad_id is None else pad_id,
    )


def check_folders(config: RoundConfig) -> tuple[str, str]:
    """Reads both folders to the last byte and compares what must be alike.

    Returns:
        Weights digests of the model and of the reference.

    Raises:
        PolicyRefused: A folder cannot be a policy.
        TemplateMismatch: Data, model and reference are of different templates or tokenizers.
    """
    model = inspect(config.model)
    if config.data.template_digest is not None:
        require_template(
            config.data.template_digest,
            model.template_digest,
            data=f"the snapshot {config.snapshot.name[:12]}",
            model=str(config.model),
        )
    if config.reference_folder == config.model:
        return model.weights_digest, model.weights_digest
    reference = inspect(config.reference_folder)
    if reference.tokenizer_digest != model.tokenizer_digest:
        raise TemplateMismatch(
            f"{config.reference_folder} has another tokenizer than {config.model}: their log-probabilities "
            "are of different tokens; choose a reference of the same family"
        )
    return model.weights_digest, reference.weights_digest


def stop_ids_of(folder: Path) -> tuple[int, ...]:
    """What ends an answer beside EOS, as a model folder's generation defaults say."""
    if not (folder / GENERATION).is_file():
        return ()
    stated = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    if stated is None:
        return ()
    return tuple(stated) if isinstance(stated, list | tuple) else (stated,)


def _some(examples: Examples, count: int, seed: int) -> Examples:
    """At most `count` of a split's examples, chosen by the seed, with the drops of the whole split."""
    if len(examples) <= count:
        return examples
    chosen = Examples(examples.template_digest, examples.report.total, examples.report.dropped)
    for index in examples_of_step(seed, 0, examples=len(examples), batch=count):
        chosen.append(examples[index])
    return chosen
