"""Images in, batches out: sources, decoding, augmentation and the input pipeline."""

from mpcvit.data.augment import flip, rand_augment, random_erasing, random_resized_crop
from mpcvit.data.batches import Batch, EvalBatch, TrainBatches, eval_batches
from mpcvit.data.dataset import (
    Dataset,
    Split,
    count_classes,
    load_dataset,
    load_split,
    sample_evenly,
)
from mpcvit.data.images import (
    Inputs,
    Photos,
    decode_image,
    fit_image,
    list_pictures,
    list_skipped,
    make_inputs,
    normalisation,
    normalise,
    read_photos,
    sift_pictures,
)
from mpcvit.data.mixing import Mix, draw_mix, mix, partners, soft_targets
