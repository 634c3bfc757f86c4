"""Images in, batches out: sources, decoding, augmentation and the input pipeline."""

from mpcvit.data.augment import flip, random_erasing, random_resized_crop
from mpcvit.data.batches import Batch, EvalBatch, TrainBatches, eval_batches
from mpcvit.data.dataset import (
    Dataset,
    Split,
    count_classes,
    load_dataset,
    load_split,
    sample_evenly,
)
from mpcvit.data.images import decode_image, fit_image, normalisation, normalise
from mpcvit.data.inputs import Inputs, list_pictures, make_inputs
from mpcvit.data.mixing import Mix, draw_mix, mix, partners, soft_targets
from mpcvit.data.photos import Photos, read_photos, sift_pictures
from mpcvit.data.randaugment import rand_augment

__all__ = [
    "Batch",
    "Dataset",
    "EvalBatch",
    "Inputs",
    "Mix",
    "Photos",
    "Split",
    "TrainBatches",
    "count_classes",
    "decode_image",
    "draw_mix",
    "eval_batches",
    "fit_image",
    "flip",
    "list_pictures",
    "load_dataset",
    "load_split",
    "make_inputs",
    "mix",
    "normalisation",
    "normalise",
    "partners",
    "rand_augment",
    "random_erasing",
    "random_resized_crop",
    "read_photos",
    "sample_evenly",
    "sift_pictures",
    "soft_targets",
]
