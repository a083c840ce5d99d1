"""The compute-heavy stage of residual.py: 24 ops, 2,040 parameters, 251,904 forward FLOPs a sample."""

from torch import nn


class ConvStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Module() for _ in range(2))
        self.blocks[0].conv1 = nn.Conv2d(3, 8, kernel_size=3, padding=1, bias=False)
        self.blocks[0].bn1 = nn.BatchNorm2d(8)
        self.blocks[0].relu = nn.ReLU(inplace=True)
        self.blocks[0].conv2 = nn.Conv2d(8, 8, kernel_size=3, padding=1, bias=False)
        self.blocks[0].bn2 = nn.BatchNorm2d(8)
        self.blocks[0].downsample = nn.Conv2d(3, 8, kernel_size=1)
        self.blocks[1].conv1 = nn.Conv2d(8, 8, kernel_size=3, padding=1, bias=False)
        self.blocks[1].bn1 = nn.BatchNorm2d(8)
        self.blocks[1].relu = nn.ReLU(inplace=True)
        self.blocks[1].conv2 = nn.Conv2d(8, 8, kernel_size=3, padding=1, bias=False)
        self.blocks[1].bn2 = nn.BatchNorm2d(8)
        self.head = nn.ModuleDict({
            "0": nn.AdaptiveAvgPool2d((4, 4)),
            "1": nn.Flatten(),
        })

    def forward(self, x):
        """Take x: f32[B, 3, 8, 8]; give head.1 f32[B, 128]."""
        blocks_0_downsample = self.blocks[0].downsample(x)            # residual.py:18
        x = self.blocks[0].conv1(x)                                   # residual.py:19
        x = self.blocks[0].bn1(x)
        x = self.blocks[0].relu(x)
        x = self.blocks[0].conv2(x)                                   # residual.py:20
        x = self.blocks[0].bn2(x)
        x = x + blocks_0_downsample                                   # residual.py:21
        x = self.blocks[0].relu(x)
        blocks_1 = self.blocks[1].conv1(x)                            # residual.py:19
        blocks_1 = self.blocks[1].bn1(blocks_1)
        blocks_1 = self.blocks[1].relu(blocks_1)
        blocks_1 = self.blocks[1].conv2(blocks_1)                     # residual.py:20
        blocks_1 = self.blocks[1].bn2(blocks_1)
        blocks_1 = blocks_1 + x                                       # residual.py:21
        blocks_1 = self.blocks[1].relu(blocks_1)
        truediv = 1.0 / blocks_1.size(2)                              # residual.py:33
        blocks_1 = blocks_1.view(blocks_1.size(0), blocks_1.size(1), -1, blocks_1.size(3))  # residual.py:34
        blocks_1 = blocks_1 * truediv
        blocks_1 = self.head["0"](blocks_1)
        return self.head["1"](blocks_1)
