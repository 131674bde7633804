"""What BatchNorm's statistics of a few images miss of those of many, from the statistics of single images.

The formulas and the rule are those of `lockstep diagnose` (src/train/diagnosis); docs/do/diagnose.md says how often the rule
was right. Arrays are NumPy's, of float64.
"""
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..table import Array

# These are the program's (kMissed, kMissedAlone, kUnfit, kMixture, kAlike, kApart, kKinds). tests/python compares them.

# The share of the variance that statistics may miss before it can matter: their mean is then off by a quarter of a standard
# deviation.
MISSED = 1.0 / 16

# The same where one image is alone on a device.
MISSED_ALONE = 1.0 / 32

# How many times the loss of training the loss of evaluation may be before the running statistics do not fit the weights.
UNFIT = 1.5

# From this share of a layer's variance between images on, statistics of many fit none of them.
MIXTURE = 0.5

# By what factor an image's variance is off that of all, with one image on a device: up to ALIKE statistics of many fit the
# images, from APART on they do not.
ALIKE = 2.0
APART = 2.5

# From this bimodality on images are said to fall into kinds.
KINDS = 0.7

# Where weights come from: a training begins with them, or with those of another training, or has made them. WeightsOrigin of
# the program.
ORIGINS = ("initial", "pretrained", "trained")


@dataclass(frozen=True)
class ImageMoments:
    """Statistics of one layer by image, or by images put together: `count` values per channel of each, `mean` and `m2`
    [images, channels]."""
    count: int
    mean: Array
    m2: Array


@dataclass(frozen=True)
class LayerNoise:
    """A layer as statistics of n images see it, beside those of very many; means over channels.

    With w the variance within images and b that of their means (unbiased), n random images have means whose variance is
    b / n, and see w + b - b / n of the variance w + b.
    """
    layer: str
    values: int  # per channel, in such statistics
    ratio: float  # between / within: the variance between such statistics over the variance that they see
    missed: float  # the share of the variance that they do not see
    log_var_ratio: float  # |log| of the variance of n neighbours over that of all images
    mean_shift: float  # of their mean from that of all, in standard deviations: the root of `missed`
    # Sarle's coefficient of the images' means, whatever is put together: 0.33 of a normal distribution, 0.56 of a uniform one,
    # up to 1 of two heaps. 0 of fewer than four images.
    bimodality: float

    def to_dict(self) -> Dict[str, Any]:
        """As `lockstep diagnose --json` has it."""
        return dict(self.__dict__)


def merge_neighbours(images: ImageMoments, together: int) -> ImageMoments:
    """Each run of `together` neighbours as one; those at the end that are fewer are left out."""
    sets = len(images.mean) // together
    means, m2s = (each[:sets * together].reshape(sets, together, each.shape[1]) for each in (images.mean, images.m2))
    mean = means.mean(axis=1)
    m2 = m2s.sum(axis=1) + images.count * np.square(means - mean[:, None]).sum(axis=1)
    return ImageMoments(images.count * together, mean, m2)


def noise_of(layer: str, images: ImageMoments, together: int, eps: float) -> LayerNoise:
    """What `together` images miss. REQUIRES: at least two images, and as many as are put together."""
    within = (images.m2 / images.count).mean(axis=0)
    between = images.mean.var(axis=0, ddof=1)
    apart, everything = between / together, within + between
    missed = float((apart / (everything + eps)).mean())
    neighbours = merge_neighbours(images, together)
    return LayerNoise(layer=layer, values=neighbours.count, missed=missed, mean_shift=float(np.sqrt(missed)),
                      ratio=float((apart / (everything - apart + eps)).mean()),
                      log_var_ratio=_log_var_ratio(neighbours, eps), bimodality=_bimodality(images.mean))


def _bimodality(means: Array) -> float:
    """Of means [images, channels], as a mean over channels: (skewness^2 + 1) / kurtosis with the corrections of small samples
    (Pfister et al. 2013). A channel whose means are equal but for rounding counts as 0."""
    n, channels = means.shape
    if n < 4:
        return 0.0
    centre = means.mean(axis=0)
    second = np.square(means - centre).mean(axis=0)
    apart = second > 1e-12 * centre ** 2
    distance, second = (means - centre)[:, apart], second[apart]
    skewness = (distance ** 3).mean(axis=0) / second ** 1.5 * np.sqrt(n * (n - 1)) / (n - 2)
    excess = (distance ** 4).mean(axis=0) / second ** 2 - 3
    kurtosis = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * excess + 6)
    coefficient = (skewness ** 2 + 1) / (kurtosis + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))
    return float(coefficient.sum() / channels)


def _log_var_ratio(parts: ImageMoments, eps: float) -> float:
    """Mean over channels and parts of |log((variance of the part + eps) / (variance of all + eps))|."""
    own = parts.m2 / parts.count
    whole = own.mean(axis=0) + parts.mean.var(axis=0)
    return float(np.abs(np.log((own + eps) / (whole + eps))).mean())


def settled_statistics(slices: Sequence[ImageMoments]) -> Tuple[Array, Array]:
    """Running mean and variance [channels] that training by these slices leaves behind once they have settled: the mean of
    the slices' means, and that of their unbiased variances. Several: of the calls of one layer."""
    means = np.concatenate([each.mean for each in slices])
    variances = np.concatenate([each.m2 / max(1, each.count - 1) for each in slices])
    return means.mean(axis=0), variances.mean(axis=0)


def judge(together: int, layers: List[LayerNoise], global_batch: Optional[int], loss: float = float("nan"),
          running_loss: float = float("nan"), weights: str = "initial", stored_loss: float = float("nan")) -> Tuple[str, str]:
    """The verdict of `together` images per device ("synchronize", "not needed", "by image", "cannot tell") and its reason.

    `loss` is that of training, `running_loss` that of an evaluation after such training, `stored_loss` that by the running
    statistics that trained weights came with; nan where nobody knows them. `weights`: one of ORIGINS. The first of these that holds counts:

    - Trained weights do better by each image's own statistics than by their running ones, by UNFIT: evaluate by the former.
    - MIXTURE of a layer's variance lies between images. Statistics of many are then a mixture that fits none of them:
      normalise by image. Weights that were pretrained by another norm are left out.
    - Statistics that miss less than MISSED in every layer are good enough, those of one image less than MISSED_ALONE.
    - Where those of one image miss more, an evaluation by running ones does not see what training saw. With pretrained weights:
      synchronize. With others synchronize where images are ALIKE, and normalise by image where they are APART; between them
      nobody can tell.
    - Those of several images depend on chance neighbours. That is noise, which harms or regularises. Nobody can tell which,
      unless evaluation is already worse than training by UNFIT.
    """
    smallest = min(layers, key=lambda layer: layer.values)
    if smallest.values == 1:
        return "synchronize", f"{smallest.layer} has one value per channel, which has no variance: training is an error"
    worst = max(layers, key=lambda layer: layer.missed)
    unfit = running_loss > UNFIT * loss
    if together == 1 and stored_loss > UNFIT * loss:
        return "by image", (f"these weights have the loss {loss:.2f} by each image's own statistics and {stored_loss:.2f} by "
                            f"their running ones: evaluate by own (bn.eval_stats)")
    # Where an image has one value per channel all variance lies between images, and a norm by image would leave nothing.
    mixed = max((layer for layer in layers if layer.values > together), key=lambda layer: layer.missed, default=None)
    between = mixed.missed * together if mixed else 0.0
    if mixed and weights != "pretrained" and between >= MIXTURE:
        kinds = ", which fall into kinds" if mixed.bimodality >= KINDS else ""
        return "by image", (f"{100 * between:.0f} % of the variance at {mixed.layer} lies between images{kinds}: statistics of "
                            f"many fit none of them; compare instance, and local evaluated by own statistics, with sync")
    if global_batch and together >= global_batch:
        return "not needed", f"the global batch has no more than {global_batch} images"
    missed = f"{100 * worst.missed:.1f} % of the variance at {worst.layer}"
    if worst.missed < (MISSED_ALONE if together == 1 else MISSED):
        return "not needed", f"{'it misses' if together == 1 else 'they miss'} {missed}, and less at other layers"
    if together == 1 and weights == "pretrained":
        return "synchronize", f"it misses {missed}, which an evaluation by running statistics has"
    if together == 1:
        return _alone(layers, missed)
    if unfit:
        return "synchronize", (f"they miss {missed}, and the running statistics do not fit the weights: loss {running_loss:.2f} "
                               f"in evaluation, {loss:.2f} in training")
    return "cannot tell", f"they miss {missed}: noise, which may harm or regularise"


def _alone(layers: List[LayerNoise], missed: str) -> Tuple[str, str]:
    """The verdict of one image per device whose statistics miss much, with weights that are not pretrained."""
    apart = float(np.exp(np.mean([layer.log_var_ratio for layer in layers if layer.values > 1])))
    factor = f"an image's variance is off that of all by a factor of {apart:.1f}, the mean of all layers"
    seen = f"it misses {missed}, which an evaluation by running statistics has; {factor}"
    if apart >= APART:
        return "by image", (f"{factor}: light or contrast differ from image to image; compare instance, and local evaluated by own "
                            f"statistics, with sync")
    if apart <= ALIKE:
        return "synchronize", f"{seen}: images are alike, and statistics of many fit them"
    return "cannot tell", f"{seen}: synchronize or normalise by image; compare both"
