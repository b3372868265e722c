"""A checkpoint as a plain model folder: what transformers, vLLM and the registry take."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import GenerationConfig, PreTrainedModel

from ratchet.model_folder import GENERATION, MORE_TEMPLATES, TEMPLATE, TOKENIZER_FILES
from trainer.durable import INCOMING, place, room
from trainer.engine import Engine


def export(engine: Engine, source: Path, folder: Path) -> None:
    """Writes the model as it is now; all ranks take part, rank 0 writes.

    Weights are gathered one by one and adapters merged; a tied weight is written once, as it is loaded. The
    tokenizer, the chat template and the generation defaults are the source's own files, as are their digests.

    Args:
        engine: In training.
        source: The folder the round's model came from.
        folder: Appears whole or not at all; one of that name gives way.

    Raises:
        DiskFull: There is no room.
    """
    weights = {name: value for name, value in engine.weights() if value is not None}
    if engine.world.first:
        incoming = folder.with_name(f"{INCOMING}{folder.name}")
        shutil.rmtree(incoming, ignore_errors=True)
        try:
            with room(folder.parent):
                incoming.mkdir(parents=True)
                with _neutral(engine.model):
                    engine.model.save_pretrained(incoming, state_dict=weights)
                (incoming / GENERATION).unlink(missing_ok=True)
                defaults = (GENERATION,) if engine.model.can_generate() else ()
                for name in (*TOKENIZER_FILES, TEMPLATE, *defaults):
                    if (source / name).is_file():
                        shutil.copyfile(source / name, incoming / name)
                if (source / MORE_TEMPLATES).is_dir():
                    shutil.copytree(source / MORE_TEMPLATES, incoming / MORE_TEMPLATES)
            place(incoming, folder)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
    engine.world.wait()


@contextmanager
def _neutral(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model states no generation defaults: saving refuses some that loading accepts."""
    if not model.can_generate():
        yield
        return
    kept, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = kept
