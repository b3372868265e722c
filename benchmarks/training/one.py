"""One run in a process of its own: `python -m benchmarks.training.one SIDE CONFIG FOLDER BATCH`.

Prints one JSON document: examples a second of the learning itself (reference log-probabilities, saves and
exports left out on both sides), peak resident memory of the whole process, and the loss of every step.
"""

import json
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.training.material import in_order
from trainer.config import RoundConfig, load
from trainer.memory import peak_memory_bytes


@dataclass(frozen=True)
class Run:
    """What a run gave.

    Attributes:
        examples_per_second: Pairs or demonstrations learned a second.
        peak_memory_bytes: Largest resident memory.
        losses: Of each optimiser step.
    """

    examples_per_second: float
    peak_memory_bytes: int
    losses: list[float]


def ours(config: RoundConfig, folder: Path) -> Run:
    """A round as it is run by people, in this process."""
    from trainer.round import prepare, run_round
    from trainer.sink import EVENTS

    prepare(config, folder)
    summary = run_round(folder)
    events = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "metrics" and "loss" in event]
    return Run(summary.examples_per_second, summary.peak_memory_bytes, losses)


def trl_dpo(config: RoundConfig, folder: Path, batch: int) -> Run:
    """TRL's DPOTrainer on the same tokens in the same order, its reference precomputed."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    class Given(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    examples = in_order(config)
    rows = [
        {
            "prompt": "",
            "chosen": "",
            "rejected": "",
            "prompt_ids": list(example.prompt),
            "chosen_ids": list(example.answers[0]),
            "rejected_ids": list(example.answers[1]),
        }
        for example in examples
    ]
    trainer = Given(
        model=AutoModelForCausalLM.from_pretrained(config.model, dtype="float32"),
        args=DPOConfig(
            beta=config.loss.beta,
            max_length=config.data.max_length,
            precompute_ref_log_probs=True,
            **_arguments(config, folder, batch),
        ),
        processing_class=AutoTokenizer.from_pretrained(config.model),
        train_dataset=Dataset.from_list(rows),
    )
    return _trained(trainer, len(examples))


def trl_sft(config: RoundConfig, folder: Path, batch: int, *, packing: bool) -> Run:
    """TRL's SFTTrainer on the same tokens: packed (best fit, rows of the longest length) or padded."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    examples = in_order(config)
    rows = [
        {
            "input_ids": [*example.prompt, *example.answers[0]],
            "completion_mask": [0] * len(example.prompt) + [1] * len(example.answers[0]),
        }
        for example in examples
    ]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(config.model, dtype="float32"),
        args=SFTConfig(
            max_length=config.data.max_length,
            packing=packing,
            shuffle_dataset=False,
            completion_only_loss=True,
            **_arguments(config, folder, batch),
        ),
        processing_class=AutoTokenizer.from_pretrained(config.model),
        train_dataset=Dataset.from_list(rows),
    )
    return _trained(trainer, len(examples))


def _arguments(config: RoundConfig, folder: Path, batch: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": max(1, config.optim.batch // batch),
        "learning_rate": config.optim.lr,
        "lr_scheduler_type": "constant",
        "max_grad_norm": config.optim.clip,
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "gradient_checkpointing": config.engine.gradient_checkpointing,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": config.seed,
    }


def _trained(trainer: Any, examples: int) -> Run:
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        began = ended = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = self.began or time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ended = time.perf_counter()

    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Run(examples / (clock.ended - clock.began), peak_memory_bytes(), losses)


def main() -> None:
    """Runs one side and says what it gave."""
    side, path, folder, batch = sys.argv[1:5]
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    stdout = os.dup(1)
    os.dup2(2, 1)
    config = load(Path(path))
    match side:
        case "ours":
            run = ours(config, Path(folder))
        case "trl-dpo":
            run = trl_dpo(config, Path(folder), int(batch))
        case "trl-packed" | "trl-padded":
            run = trl_sft(config, Path(folder), int(batch), packing=side == "trl-packed")
        case _:
            raise SystemExit(f"{side} is no side: ours, trl-dpo, trl-packed or trl-padded")
    with os.fdopen(stdout, "w") as out:
        out.write(json.dumps(vars(run)) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
