"""What a round will hold in memory on each device, derived part by part.

All sizes are bytes. With P parameters, of which T are trained, N processes, w bytes a weight (2 in bf16, 4 in
fp32) and the stages of ZeRO (Rajbhandari et al. 2020, section 5):

- weights: `w P`, divided by N in stage 3.
- gradients: `w T`, divided by N from stage 2 on; bf16 adds them up in float32, which is another `4 T / N`.
- optimiser: AdamW's two moments in float32, `8 T`, and where weights are bf16 or ZeRO divides them a float32
  master copy, `4 T`; divided by N from stage 1 on.
- activations: what a block keeps of each token for the backward pass (`_kept_by_layer`), times blocks; with
  gradient checkpointing the blocks' inputs, `w h` each, and one block whole.
- logits: `w V` for each place that predicts an answer token, and nowhere else.
- key-value cache: `2 w layers kv_heads head_size` for each token of each answer that is sampled at once.

- bucket: gradients put together to be shared among processes, 500 million weights at most (DeepSpeed's
  `reduce_bucket_size`); stage 0 puts them together when the backward pass is over, the others on the way, in
  a buffer that a GPU gives whole.
- allocator: on a CPU glibc keeps what was freed in pieces below 32 MiB (`mallopt`, M_MMAP_THRESHOLD), in one
  arena for the thread of the forward pass and in another for that of the backward pass, which together hold
  such activations about twice. This part is a rule from measurements, not an identity.

The peak is the largest of three moments: a backward pass that begins while gradients of earlier micro-batches
are there (`step`), its end (`update`), and a measurement of KL or a rollout, in which answers are sampled and
nothing is kept for a backward pass (`sample`).
"""

from trainer.config import Packing, ReferenceWay
from trainer.plan.setup import (
    ALWAYS,
    LEARNING,
    Examples,
    Layout,
    Load,
    MemoryPlan,
    Part,
    Phase,
    Sampling,
    Setup,
)
from trainer.plan.shape import Shape

MIB = 1 << 20
RUNTIME = {"cpu": 600 * MIB, "cuda": 600 * MIB}
"""A process before it holds a weight: interpreter and libraries on a CPU, context and kernels on a GPU."""
HEAP_PIECE = 32 * MIB
"""Larger pieces go back to the system as soon as they are free."""


BUCKET = 500_000_000
"""Weights whose gradients are put together at once."""


def load_of(examples: Examples, layout: Layout, processes: int = 1) -> Load:
    """The largest micro-batch that a layout makes of examples of which the longest are as long as these.

    A prompt of p tokens with k answers of a tokens takes `p + k a` positions as branches, which is one prompt
    for all of its answers, and `k (p + a)` packed side by side or padded. Each branch copies the keys and
    values it sees, `p + a`, into one stretch. Shorter examples fill what the longest leave of the capacity,
    in the same proportions. Padded batches are made of the whole step before ranks divide them.
    """
    prompt, answer, answers = examples.prompt, examples.answer, examples.answers
    branches = layout.packing is Packing.BRANCHES
    size = prompt + answers * answer if branches else answers * (prompt + answer)
    share = -(-layout.batch // processes)
    most = layout.batch if layout.packing is Packing.PADDED else share
    tokens = max(size, min(layout.capacity, most * size))
    return Load(
        tokens=tokens,
        joined=-(-tokens * answers * (prompt + answer) // size) if branches and answers > 1 else 0,
        scored=-(-tokens * answers * answer // size),
        batches=-(-share * size // tokens),
    )


def memory_plan(setup: Setup, load: Load) -> MemoryPlan:
    """Predicts what one device holds.

    Args:
        setup: Model, engine and companions.
        load: The largest micro-batch (`load_of`).
    """
    shape, w = setup.shape, setup.weight_bytes
    head = -shape.vocabulary * shape.hidden * (not shape.tied) if setup.scores else 0
    total = shape.parameters + head
    trained = total if setup.adapter is None else shape.adapter(*setup.adapter)
    weights = total + (0 if setup.adapter is None else trained)
    parts = [
        Part("runtime", RUNTIME[setup.device], ALWAYS, f"measured once, on {setup.device}"),
        *_trained(setup, "policy", weights, trained),
    ]
    if setup.critic != "none":
        size = shape.hidden + 1 if setup.critic == "head" else shape.parameters
        parts += _trained(setup, "critic", size, size)
    if setup.reference is not None:
        parts += _reference(setup)
    if setup.reward_model is not None:
        size = setup.reward_model.parameters
        parts.append(
            Part("reward model", w * size // setup.frozen_shards, ALWAYS, f"{w} B x {size:,} frozen")
        )
    kept = _kept(setup, load)
    parts += kept
    if setup.device == "cpu":
        twice = _kept_by_heap(setup, load, {part.name: part.bytes for part in kept})
        parts.append(
            Part("kept by the allocator", twice, (Phase.STEP,), "what is in pieces below 32 MiB, once more")
        )
    if setup.sampling is not None:
        parts += _sampled(setup, setup.sampling)
    merged = [part for part in parts if part.bytes]
    return MemoryPlan(tuple(merged), load)


def kv_cache_bytes(shape: Shape, tokens: int, weight_bytes: int) -> int:
    """Keys and values of so many tokens: `2 w layers kv_heads head_size` each."""
    return 2 * weight_bytes * shape.layers * shape.key_value * tokens


def _trained(setup: Setup, name: str, weights: int, trained: int) -> list[Part]:
    w, n, stage = setup.weight_bytes, setup.processes, setup.zero_stage
    on_host = setup.device == "cuda"
    divided = {False: 1, True: n}
    weight_shards = divided[stage == 3]
    gradient_shards = divided[stage >= 2]
    state_shards = divided[stage >= 1]
    half = setup.precision == "bf16"
    master = 4 * trained // state_shards if half or stage >= 1 else 0
    summed = 4 * trained // state_shards if half or stage >= 1 else 0
    parts = [
        Part(
            f"{name} weights",
            w * weights // weight_shards,
            ALWAYS,
            f"{w} B x {weights:,} / {weight_shards}",
        ),
        Part(f"{name} master weights", master, ALWAYS, f"4 B x {trained:,} / {state_shards}"),
        Part(
            f"{name} moments",
            8 * trained // state_shards,
            ALWAYS,
            f"8 B x {trained:,} / {state_shards}",
        ),
        Part(
            f"{name} gradients",
            w * trained // gradient_shards,
            LEARNING,
            f"{w} B x {trained:,} / {gradient_shards}",
        ),
        Part(f"{name} gradients, added up", summed, LEARNING, f"4 B x {trained:,} / {state_shards}"),
    ]
    elements = BUCKET if stage and on_host else min(trained, BUCKET)
    parts.append(
        Part(
            f"{name} bucket of gradients",
            w * elements,
            LEARNING if stage else (Phase.UPDATE,),
            f"{w} B x {elements:,} put together",
        )
    )
    if on_host and setup.offload in ("optimizer", "all"):
        moved = {f"{name} master weights", f"{name} moments", f"{name} gradients, added up"}
        parts = [part for part in parts if part.name not in moved]
    if on_host and setup.offload == "all":
        layer = w * max(setup.shape.layer, setup.shape.embedding)
        parts = [part for part in parts if part.name != f"{name} weights"]
        parts.append(
            Part(f"{name} weights at hand", layer, ALWAYS, "the largest layer, fetched from the host")
        )
    return parts


def _reference(setup: Setup) -> list[Part]:
    size = setup.weight_bytes * setup.shape.parameters // setup.frozen_shards
    why = f"{setup.weight_bytes} B x {setup.shape.parameters:,} / {setup.frozen_shards}"
    if setup.reference is ReferenceWay.ADAPTER:
        return []
    if setup.reference_on_host and setup.device == "cuda":
        return []
    if setup.reference is ReferenceWay.MODEL:
        return [Part("reference", size, ALWAYS, f"{why}, frozen")]
    if setup.sampling is None:
        return []
    return [Part("reference", size, (Phase.SAMPLE,), f"{why}, loaded to measure KL")]


def _kept(setup: Setup, load: Load) -> list[Part]:
    shape, w = setup.shape, setup.weight_bytes
    layer = _kept_by_layer(setup, load)
    if setup.checkpointing:
        kept = shape.layers * w * shape.hidden * load.tokens + layer
        why = f"{shape.layers} x {w} B x {shape.hidden} x {load.tokens:,} tokens, and one block whole"
    else:
        kept = shape.layers * layer
        why = f"{shape.layers} x {layer / max(1, load.tokens):,.0f} B x {load.tokens:,} tokens"
    last_norm = (4 + w) * shape.hidden * load.tokens
    largest = w * shape.embedding * (2 if shape.tied and not setup.scores else 1)
    flight = largest if setup.adapter is None else 0
    parts = [
        Part("activations", kept + last_norm, (Phase.STEP,), why),
        Part("gradient of the largest layer", flight, (Phase.STEP,), "on its way to the sum"),
    ]
    if not setup.scores:
        logits = w * shape.vocabulary * load.scored
        parts.append(
            Part(
                "logits",
                logits,
                (Phase.STEP,),
                f"{w} B x {shape.vocabulary:,} words x {load.scored:,} places",
            )
        )
    return parts


def _kept_by_heap(setup: Setup, load: Load, kept: dict[str, int]) -> int:
    """Bytes of activations and logits in pieces that the heap keeps: the feed-forward's are the widest."""
    shape, w = setup.shape, setup.weight_bytes
    blocks = 1 if setup.checkpointing else shape.layers
    widest = w * shape.intermediate * load.tokens
    feed_forward, logits = 4 * blocks * widest, kept.get("logits", 0)
    rest = kept["activations"] - feed_forward
    pieces = ((widest, feed_forward), (4 * shape.hidden * load.tokens, rest), (logits, logits))
    return sum(whole for piece, whole in pieces if piece < HEAP_PIECE)


def _kept_by_layer(setup: Setup, load: Load) -> int:
    """Bytes that one block keeps of a micro-batch for its backward pass.

    A norm keeps its input in float32 (`4 h`), what it normalised (`w h`, for the gradient of its weight) and
    its result, which is the next layers' input (`w h`); there are two. The attention keeps queries and its
    result (`w q` each), keys and values (`w kv` each) and a float32 normaliser a head; the feed-forward keeps
    gate, its activation, up, and their product (`w i` each). Branches keep the copies of the keys and values
    they see, and the attention's result once more, put together.
    """
    shape, w = setup.shape, setup.weight_bytes
    weights_of_norms = 2 if setup.adapter is None else 0
    token = (8 + (2 + weights_of_norms) * w) * shape.hidden
    token += w * (2 * shape.query + 2 * shape.key_value + 4 * shape.intermediate)
    token += 4 * (2 + shape.heads)
    if setup.adapter is not None:
        rank, targets = setup.adapter
        token += w * rank * len(set(targets))
    branches = load.joined * 2 * shape.key_value * w + (load.tokens * shape.query * w if load.joined else 0)
    return token * load.tokens + branches


def _sampled(setup: Setup, sampling: Sampling) -> list[Part]:
    shape, w = setup.shape, setup.weight_bytes
    tokens = sampling.sequences * sampling.tokens
    cache = kv_cache_bytes(shape, tokens, w)
    words = 4 * shape.vocabulary * sampling.sequences * 3
    return [
        Part(
            "logits of sampled answers",
            w * shape.vocabulary * sampling.scored,
            (Phase.SAMPLE,),
            f"{w} B x {shape.vocabulary:,} words x {sampling.scored:,} places",
        ),
        Part(
            "key-value cache",
            cache,
            (Phase.SAMPLE,),
            f"2 x {w} B x {shape.layers} x {shape.key_value} x {tokens:,} tokens",
        ),
        Part(
            "words to choose from",
            words,
            (Phase.SAMPLE,),
            f"12 B x {shape.vocabulary:,} x {sampling.sequences}",
        ),
    ]
