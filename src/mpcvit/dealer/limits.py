"""Limits: how much a request, an inference and a job may ask of a dealer.

They leave room for the largest network that two parties would run: DeiT-Small
for one image (12 layers, 197 tokens, width 384, 6 heads), not lowered, in the
64-bit ring. One layer of it, with patches and classes, was rehearsed: 346
steps, 832 MB drawn, 401 MB answered, 87 MB in the largest array. The network
has 4.6 thousand million multiply-adds. Lowered networks ask for less.
"""

MOST_REQUEST_BYTES = 1 << 19
"""Of a request's body. Scripts of 20,000 different steps take 100 kB."""

MOST_INFLATED_BYTES = 1_000_000
"""Of all scripts of a job, as text. A step takes 20 to 50 bytes, DeiT-Small 90 kB."""

MOST_STEPS = 20_000
"""Of all scripts of a job. DeiT-Small has 4,200."""

MOST_STEP_BYTES = 1 << 27
"""Of one random array, which the dealer holds several times while it computes."""

MOST_DRAWN_BYTES = 12 << 30
"""Of an inference, for each party. DeiT-Small draws 10.0 GB."""

MOST_ANSWER_BYTES = 6 << 30
"""Of an inference. DeiT-Small gets 4.8 GB."""

MOST_MULTIPLY_ADDS = 8_000_000_000
"""Of an inference's matrix products."""

MOST_FULL_INFERENCES = 1_000
"""A job may ask for as much as a thousand of the largest inferences.

The 10,000 test images of CIFAR-10 are a third of that.
"""
