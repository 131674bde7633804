"""What the lens has found: the figures of `lockstep diagnose --json`, under the same names, and a few more."""
import math
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from .._files import write_text
from ..table import Table
from .noise import MISSED, LayerNoise
from .page import bars, document, table


@dataclass(frozen=True)
class ImagesDiagnosis:
    """Statistics of so many images per device, as training by them would have them."""
    images_per_device: int
    verdict: str  # "synchronize", "not needed", "by image", "cannot tell"
    reason: str
    layers: List[LayerNoise]  # in the order in which they are called
    # nan where a layer has one value per channel, so that there is no training:
    logit_noise: float  # distance of the logits from those by statistics of all images, in standard deviations of these
    logit_disparity: float  # distance of the logits in training from those in evaluation, likewise
    changed: float  # share of positions whose class differs between training and evaluation
    loss: float  # in training: by these statistics; nan without labels
    running_loss: float  # in evaluation: by the running statistics that such training leaves behind
    # Of each image by its own statistics, the same for every number of images; nan without labels. A layer that sees one value
    # per channel of an image takes running ones.
    own_loss: float
    stored_loss: float  # by the running statistics that trained weights came with; nan of other weights

    @property
    def worst(self) -> LayerNoise:
        """The layer whose statistics miss most."""
        return max(self.layers, key=lambda layer: layer.missed)

    @property
    def values(self) -> int:
        """The fewest values per channel of any layer."""
        return min(layer.values for layer in self.layers)

    @property
    def disparity(self) -> float:
        """The loss in training minus that in evaluation."""
        return self.loss - self.running_loss

    def to_dict(self) -> Dict[str, Any]:
        """As `lockstep diagnose --json` has it, and own_loss; None for what is not defined."""
        return {"images_per_device": self.images_per_device, "verdict": self.verdict, "reason": self.reason,
                "values": self.values, "missed": self.worst.missed, "logit_noise": _defined(self.logit_noise),
                "logit_disparity": _defined(self.logit_disparity), "changed": _defined(self.changed),
                "loss": _defined(self.loss), "running_loss": _defined(self.running_loss),
                "own_loss": _defined(self.own_loss), "stored_loss": _defined(self.stored_loss),
                "disparity": _defined(self.disparity),
                "layers": [layer.to_dict() for layer in self.layers]}


@dataclass(frozen=True)
class Diagnosis:
    """The result of lens(). `print(diagnosis)` shows the table and the verdicts."""
    images: int  # looked at
    size: List[int]  # of an image, without its channels
    weights: str  # where they come from, as lens() was told: "initial", "pretrained", "trained"
    loss: float  # by statistics of all images; nan without labels
    by_images: List[ImagesDiagnosis]  # empty where no layer that ran takes statistics of a batch in training
    not_run: List[str]  # layers that take them, but run in training only: nothing is known of these

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdicts, and the table."""
        return "".join(f"<p>{escape(line)}</p>" for line in [*self.notes(), *self.verdicts()]) + table(EFFECTS, self.effects())

    @property
    def shares_statistics(self) -> bool:
        """Whether any layer that ran takes statistics of a batch in training."""
        return bool(self.by_images)

    def verdict(self, images_per_device: int) -> str:
        """Of so many images per device. Raises KeyError for a number that was not looked at."""
        for each in self.by_images:
            if each.images_per_device == images_per_device:
                return each.verdict
        raise KeyError(f"{images_per_device} images per device were not looked at; there are "
                       f"{[each.images_per_device for each in self.by_images]}")

    def layers_apart(self, count: int) -> List[str]:
        """The `count` layers whose statistics differ most from device to device, at the first number of images."""
        layers = self.by_images[0].layers if self.by_images else []
        ranked = sorted(layers, key=lambda layer: -layer.ratio)  # of equal ones the earlier
        return list(dict.fromkeys(layer.layer for layer in ranked))[:count]

    def text(self, layers: bool = False) -> str:
        """The table and the verdicts that `lockstep diagnose` prints; with `layers` a table of every layer, too."""
        lines = [f"{self.images} images of {'x'.join(map(str, self.size)) or 'one value'}, {self.weights} weights",
                 *self.notes()]
        if not self.shares_statistics:
            return "\n".join(lines)
        lines += [f"loss by statistics of all of them: {_number(self.loss, 4)}", "", *_markdown(EFFECTS, self.effects()), ""]
        if layers:
            for each in self.by_images:
                header = [count_of(each.images_per_device) + " per device", *LAYER_COLUMNS[1:]]
                lines += [*_markdown(header, layer_rows(each)), ""]
        return "\n".join(lines + self.verdicts())

    def notes(self) -> List[str]:
        """What was not looked at, in sentences."""
        lines = []
        if self.not_run:
            shown = ", ".join(self.not_run[:_NAMES]) + (", ..." if len(self.not_run) > _NAMES else "")
            layers = "1 layer that runs" if len(self.not_run) == 1 else f"{len(self.not_run)} layers that run"
            lines.append(f"left out: {layers} in training only ({shown})")
        if not self.shares_statistics:
            lines.append("no other layer of this network normalises by statistics of several images" if self.not_run else
                         "nothing is shared: no BatchNorm layer of this network normalises by statistics of several images in training, "
                         "so there is nothing to synchronize (what other layers compute is not looked at)")
        return lines

    def verdicts(self) -> List[str]:
        """The verdicts in words. Numbers of images with the same to say stand in one line."""
        lines = []
        for (verdict, reason), group in groupby(self.by_images, lambda each: (each.verdict, each.reason)):
            lines.append(f"{count_of(*(each.images_per_device for each in group))} per device: {verdict} ({reason})")
        return lines

    def effects(self) -> List[List[str]]:
        """The rows of the table, a column for each of EFFECTS."""
        return [[str(each.images_per_device), str(each.values), f"{100 * each.worst.missed:.1f} %",
                 _number(each.logit_noise, 3), _number(each.logit_disparity, 3), _number(each.loss, 4),
                 _number(each.running_loss, 4), _number(each.own_loss, 4), f"{100 * each.changed:.1f} %"]
                for each in self.by_images if not math.isnan(each.logit_noise)]

    def to_dict(self) -> Dict[str, Any]:
        """As `lockstep diagnose --json` has it, and not_run; without left_out, sync_layers and seconds."""
        return {"images": self.images, "size": list(self.size), "weights": f"{self.weights} weights",
                "not_run": list(self.not_run), "shares_statistics": self.shares_statistics,
                "loss": _defined(self.loss), "by_images_per_device": [each.to_dict() for each in self.by_images]}

    def to_table(self) -> Table:
        """A row per number of images and layer."""
        return Table.from_records([{"images_per_device": each.images_per_device, **layer.to_dict()}
                                   for each in self.by_images for layer in each.layers])

    def to_pandas(self) -> Any:
        """to_table() as a pandas.DataFrame. Raises MissingPackageError without pandas."""
        return self.to_table().to_pandas()

    def save_html(self, path: Union[str, Path]) -> None:
        """Writes one page of HTML, which needs no other file, no script and no network."""
        write_text(path, _page_of(self))


EFFECTS = ["images per device", "values per channel", "variance missed", "logits: noise", "train - eval", "loss in training",
           "in evaluation", "by own statistics", "classes changed"]
LAYER_COLUMNS = ["layer", "values per channel", "between / within", "variance missed", "shift of the mean",
                 "|log variance ratio|", "bimodality"]
_NAMES = 4  # of layers that did not run, in a sentence


def layer_rows(images: ImagesDiagnosis) -> List[List[str]]:
    """A row for each layer, a column for each of LAYER_COLUMNS."""
    return [[layer.layer, str(layer.values), _number(layer.ratio, 4), f"{100 * layer.missed:.1f} %",
             _number(layer.mean_shift, 3), _number(layer.log_var_ratio, 3), _number(layer.bimodality, 2)]
            for layer in images.layers]


def count_of(*images: int) -> str:
    """ "1 image", "2 images", "1, 2 images" """
    return f"{', '.join(map(str, images))} image{'' if images == (1,) else 's'}"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _defined(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


def _markdown(header: List[str], rows: List[List[str]]) -> List[str]:
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows)]

    def line(cells: List[str]) -> str:
        padded = [cell.ljust(width) if place == 0 else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(cells, widths))]
        return f"| {' | '.join(padded)} |"

    rule = "|".join((":" + "-" * (width + 1)) if place == 0 else ("-" * (width + 1) + ":")
                    for place, width in enumerate(widths))
    return [line(header), f"|{rule}|", *map(line, rows)]


def _page_of(diagnosis: Diagnosis) -> str:
    """Every figure is a table, too."""
    title = "BatchNorm's statistics of a few images"
    body = [f"<h1>{_headline(diagnosis)}</h1>",
            f"<p>{diagnosis.images} images of {'×'.join(map(str, diagnosis.size)) or 'one value'} went forward through the "
            f"network, with {diagnosis.weights} weights. Nothing was trained.</p>",
            *(f"<p>{escape(line)}</p>" for line in diagnosis.notes())]
    if diagnosis.shares_statistics:
        body += [f"<p>{escape(line)}</p>" for line in diagnosis.verdicts()]
        if any(each.verdict == "by image" for each in diagnosis.by_images):
            body.append('<p class="note">By image: a norm of one image, as InstanceNorm, or BatchNorm with one image per device '
                        "that is evaluated by each image's own statistics.</p>")
        body += ["<h2>What so many images per device do</h2>", table(EFFECTS, diagnosis.effects()),
                 '<p class="note">Variance missed: the share of a layer\'s variance that statistics of so many images do not '
                 "see, in the layer where it is largest. Logits: distances in standard deviations of the logits. In evaluation "
                 "running statistics normalise. By own statistics: the loss of each image normalised by its own.</p>"]
    for each in diagnosis.by_images:
        body += [f"<h2>{count_of(each.images_per_device)} per device</h2>", _bars_of(each),
                 '<p class="note">Variance missed by each layer, in the order in which they are called. From the dashed line '
                 f"on, at {100 * MISSED:.1f} %, it can matter. Bimodality of the images' means: 0.33 of a normal distribution, "
                 "near 1 of two heaps.</p>",
                 "<details><summary>Numbers</summary>", table(LAYER_COLUMNS, layer_rows(each)), "</details>"]
    body.append('<p class="note">A comparison on your own data is the answer; these figures say whether it is worth its time. '
                "The rule is that of lockstep diagnose.</p>")
    return document(title, body)


def _headline(diagnosis: Diagnosis) -> str:
    if not diagnosis.shares_statistics:
        return "Nothing that ran is shared" if diagnosis.not_run else "Nothing is shared: there is nothing to synchronize"
    told = {"by image": "normalise by image", "synchronize": "synchronize"}
    parts = []
    for verdict, advice in told.items():
        numbers = [each.images_per_device for each in diagnosis.by_images if each.verdict == verdict]
        if numbers:
            parts.append(f"{advice} with {count_of(*numbers)} per device")
    if parts:
        text = "; ".join(parts)
        return text[0].upper() + text[1:]
    if all(each.verdict == "not needed" for each in diagnosis.by_images):
        return "Synchronizing is not needed"
    return "Forward passes cannot tell whether to synchronize"


def _bars_of(images: ImagesDiagnosis) -> str:
    return bars(f"Variance missed, {count_of(images.images_per_device)} per device", [layer.layer for layer in images.layers],
                [layer.missed for layer in images.layers], MISSED)
