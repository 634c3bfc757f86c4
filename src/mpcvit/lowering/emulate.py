"""The plaintext emulation of a program over a whole split."""

import time
from collections import Counter
from dataclasses import dataclass

import jax.numpy as jnp

from mpcvit.data import Split, eval_batches
from mpcvit.lowering import EMULATED_BATCH
from mpcvit.lowering.program import SecureProgram
from mpcvit.progress import Progress, quiet
from mpcvit.train.evaluate import SUMS, Evaluation, sums_of


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """The accuracy of a program, and the share of values that left their intervals."""

    evaluation: Evaluation
    out_of_range: dict[str, float]  # by label, the share of its values
    left: int  # images with a value outside its interval, or a logit outside its bounds
    refused: int  # images without an answer in a private run
    close: int  # images that a private run says it is not sure of


def emulate(
    program: SecureProgram,
    split: Split,
    *,
    batch_size: int = EMULATED_BATCH,
    fixed_point: bool = False,
    progress: Progress = quiet,
) -> Emulation:
    """Run every image of a split; `fixed_point` also rounds as the engine does."""
    started = time.perf_counter()
    sums = jnp.zeros(SUMS)
    outside, met, judged = Counter[str](), Counter[str](), Counter[str]()
    progress("compiling", 0, 1)  # ends with the first batch
    for index, batch in enumerate(eval_batches(split, program.data, batch_size)):
        is_real = batch.mask > 0
        found, counts = program.judge_and_count(batch.images, is_real)
        logits = program.in_fixed_point(batch.images) if fixed_point else found.logits
        sums += sums_of(*map(jnp.asarray, (logits, batch.labels, batch.mask)))
        judged["left"] += int((is_real & ~(found.within & found.bounded)).sum())
        judged["refused"] += int((is_real & ~found.trusted).sum())
        judged["close"] += int((is_real & found.close & found.trusted).sum())
        for label, (count, total) in counts.items():
            outside[label] += count
            met[label] += total
        progress("compiling", 1, 1)
        progress("evaluating", min((index + 1) * batch_size, len(split)), len(split))
    return Emulation(
        evaluation=Evaluation.of(sums, time.perf_counter() - started),
        out_of_range={label: outside[label] / met[label] for label in met},
        left=judged["left"],
        refused=judged["refused"],
        close=judged["close"],
    )
