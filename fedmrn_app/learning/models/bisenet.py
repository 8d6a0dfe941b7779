"""BiSeNetV2 for semantic segmentation (Yu et al. 2021, Int. J. Comput. Vis. 129), with the paper's numbers of channels.

A detail branch, wide and shallow, and a semantic branch, narrow and deep, are combined by a layer in which each guides
the other. Four auxiliary heads on the semantic branch only help training: they are trained and sent like the rest of
the model, but evaluation does not run them, and `auxiliary=False` leaves them out. Where the paper leaves parts open,
they are those of the implementation that most experiments use (github.com/CoinCheung/BiSeNet): resizing to the nearest
pixel within the aggregation layer, dropout in the heads, and a second convolution in the auxiliary ones. Each feature
map is half as large as the one before, rounded up, so that images can have any size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

SMALLEST = 8  # pixels of a side: the detail branch has one feature for 8x8 pixels
EXPANSION = 6  # factor of the channels within a gather-and-expansion layer
STEM_KERNELS = 16
STAGES = ((32, 1), (64, 1), (128, 3))  # kernels, and layers that keep the size, of the semantic branch after its stem
FUSED_KERNELS = 128  # of both branches at their ends
HEAD_KERNELS = 1024
AUXILIARY_KERNELS = 128
DROPOUT = 0.1  # in the heads


class BatchNorm(nn.BatchNorm2d):
    """Batch norm that normalizes a single value per channel by the running statistics, also in training.

    A client with a single row has batches of one image, whose pooled map has one value per channel.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (n, channels, height, width)."""
        if self.training and input.numel() == self.num_features:
            mean, var = self.running_mean, self.running_var
            return functional.batch_norm(input, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(input)


def _conv(
    channels: int, kernels: int, size: int = 3, stride: int = 1, groups: int = 1, *, relu: bool = True
) -> nn.Sequential:
    """Return a convolution with batch norm and optionally ReLU; stride 2 halves the sides, rounding up."""
    convolution = nn.Conv2d(channels, kernels, size, stride, size // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [convolution, BatchNorm(kernels)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True)) if relu else nn.Sequential(*layers)


def _resize(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    return functional.interpolate(x, size, mode="bilinear", align_corners=False)


def _repeat(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    return functional.interpolate(x, size, mode="nearest")


class _Stem(nn.Module):
    """(n, channels, h, w) -> (n, 16, h/4, w/4): a convolution and a pool side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _conv(channels, STEM_KERNELS, stride=2)
        self.left = nn.Sequential(
            _conv(STEM_KERNELS, STEM_KERNELS // 2, 1), _conv(STEM_KERNELS // 2, STEM_KERNELS, stride=2)
        )
        self.right = nn.MaxPool2d(3, 2, padding=1)
        self.last = _conv(2 * STEM_KERNELS, STEM_KERNELS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.last(torch.cat([self.left(x), self.right(x)], 1))
        return out


class _GatherExpand(nn.Module):
    """A 3x3 convolution, a depthwise convolution that expands the channels, and a 1x1 convolution, with a shortcut.

    With stride 2 there is a second depthwise convolution, and the shortcut has its own convolutions.
    """

    def __init__(self, channels: int, kernels: int, stride: int) -> None:
        super().__init__()
        wide = channels * EXPANSION
        layers: list[nn.Module] = [_conv(channels, channels)]
        if stride > 1:
            layers.append(_conv(channels, wide, stride=stride, groups=channels, relu=False))
        layers.append(_conv(channels if stride == 1 else wide, wide, groups=channels if stride == 1 else wide))
        self.body = nn.Sequential(*layers, _conv(wide, kernels, 1, relu=False))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            depthwise = _conv(channels, channels, stride=stride, groups=channels, relu=False)
            self.shortcut = nn.Sequential(depthwise, _conv(channels, kernels, 1, relu=False))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.body(x) + self.shortcut(x))


class _ContextEmbedding(nn.Module):
    """The mean over all pixels, after a 1x1 convolution, added to every pixel: (n, 128, h, w) -> the same."""

    def __init__(self, kernels: int) -> None:
        super().__init__()
        self.context = nn.Sequential(nn.AdaptiveAvgPool2d(1), BatchNorm(kernels), _conv(kernels, kernels, 1))
        self.last = _conv(kernels, kernels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x + self.context(x))
        return out


class _GuidedAggregation(nn.Module):
    """The sum, of the size of the detail branch, of both branches, each gated by the other."""

    def __init__(self, kernels: int) -> None:
        super().__init__()
        self.detail_keep = self._separable(kernels)
        self.detail_down = nn.Sequential(_conv(kernels, kernels, stride=2, relu=False), nn.AvgPool2d(3, 2, padding=1))
        self.semantic_up = _conv(kernels, kernels, relu=False)
        self.semantic_keep = self._separable(kernels)
        self.last = _conv(kernels, kernels)

    @staticmethod
    def _separable(kernels: int) -> nn.Sequential:
        pointwise = nn.Conv2d(kernels, kernels, 1, bias=False)
        return nn.Sequential(_conv(kernels, kernels, groups=kernels, relu=False), pointwise)

    def forward(self, detail: Tensor, semantic: Tensor) -> Tensor:
        size = detail.shape[-2:]
        fine = self.detail_keep(detail) * torch.sigmoid(_repeat(self.semantic_up(semantic), size))
        coarse = self.detail_down(detail) * torch.sigmoid(self.semantic_keep(semantic))
        out: Tensor = self.last(fine + _repeat(coarse, size))
        return out


def _head(channels: int, kernels: int, classes: int) -> nn.Sequential:
    """Return the main head: (n, channels, h, w) -> (n, classes, h, w)."""
    return nn.Sequential(_conv(channels, kernels), nn.Dropout(DROPOUT), nn.Conv2d(kernels, classes, 1))


def _auxiliary_head(channels: int, factor: int, classes: int) -> nn.Sequential:
    """Return a head for features `factor` times as small as the image: (n, channels, h, w) -> (n, classes, 2h, 2w)."""
    kernels = factor * factor
    return nn.Sequential(
        *(_conv(channels, AUXILIARY_KERNELS), nn.Dropout(DROPOUT), nn.Upsample(scale_factor=2)),
        *(_conv(AUXILIARY_KERNELS, kernels), nn.Conv2d(kernels, classes, 1)),
    )


class BiSeNetV2(nn.Module):
    """The network.

    In evaluation it returns scores float (n, classes, h, w) at the size of the images. In training with auxiliary heads
    it returns a tuple of such scores: of the main head, of the stem and of the three stages.
    """

    def __init__(self, channels: int, classes: int, *, auxiliary: bool = True) -> None:
        super().__init__()
        self.detail = nn.Sequential(
            *(_conv(channels, 64, stride=2), _conv(64, 64)),
            *(_conv(64, 64, stride=2), _conv(64, 64), _conv(64, 64)),
            *(_conv(64, FUSED_KERNELS, stride=2), *(_conv(FUSED_KERNELS, FUSED_KERNELS) for _ in range(2))),
        )
        stages: list[nn.Module] = [_Stem(channels)]
        inputs = STEM_KERNELS
        for kernels, more in STAGES:
            layers = [_GatherExpand(inputs, kernels, 2), *(_GatherExpand(kernels, kernels, 1) for _ in range(more))]
            stages.append(nn.Sequential(*layers))
            inputs = kernels
        self.stages = nn.ModuleList(stages)
        self.context = _ContextEmbedding(FUSED_KERNELS)
        self.aggregation = _GuidedAggregation(FUSED_KERNELS)
        self.head = _head(FUSED_KERNELS, HEAD_KERNELS, classes)
        widths = (STEM_KERNELS, *(kernels for kernels, _ in STAGES)) if auxiliary else ()
        self.auxiliary = nn.ModuleList(
            _auxiliary_head(width, 4 << stage, classes) for stage, width in enumerate(widths)
        )
        self._start()

    def _start(self) -> None:
        """Draw Kaiming's normal weights; gather-and-expansion layers start as their shortcuts."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, _GatherExpand):
                last = module.body[-1][1]  # type: ignore[index]
                nn.init.zeros_(last.weight)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Score the classes of each pixel of (n, channels, h, w)."""
        size = x.shape[-2:]
        features = []
        semantic = x
        for stage in self.stages:
            semantic = stage(semantic)
            features.append(semantic)
        main = _resize(self.head(self.aggregation(self.detail(x), self.context(semantic))), size)
        if not self.training or not self.auxiliary:
            return main
        return (main, *(_resize(head(f), size) for head, f in zip(self.auxiliary, features, strict=True)))


def bisenet_v2(channels: int, size: tuple[int, int], classes: int, *, auxiliary: bool = True) -> nn.Module:
    """Build BiSeNetV2 with or without its four auxiliary heads.

    Raises:
        ValueError: a side of the images has fewer than 8 pixels.
    """
    if min(size) < SMALLEST:
        raise ValueError(f"images of {size[0]}x{size[1]} pixels are too small: each side needs at least {SMALLEST}")
    return BiSeNetV2(channels, classes, auxiliary=auxiliary)
