"""The processes that share a training, through Hugging Face Accelerate; mostly just one."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn


class Processes:
    """This process among all of them.

    Args:
        device: the kind of device that the classifier is on; each process takes one of that kind.
    """

    def __init__(self, device: torch.device) -> None:
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise ImportError(
                "fine-tuning needs accelerate: pip install 'patchdemux[train]'"
            ) from error
        # The recipe alone decides about precision, not how a machine is configured.
        self._accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="no")
        self.device: torch.device = self._accelerator.device
        self.count: int = self._accelerator.num_processes
        self.rank: int = self._accelerator.process_index
        self.is_main = self.rank == 0

    def prepared(self, model: nn.Module) -> nn.Module:
        """The model whose gradients are means over all processes; itself, where there is just one."""
        wrapped: nn.Module = self._accelerator.prepare_model(model)
        return wrapped

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def mean(self, value: Tensor) -> float:
        """The mean of a number over all processes."""
        return float(self._accelerator.reduce(value.detach(), "mean"))

    def from_main(self, value: Any) -> Any:
        """What the main process has; so nobody else needs its files."""
        from accelerate.utils import broadcast_object_list

        shared = [value]
        broadcast_object_list(shared)
        return shared[0]

    def gathered(self, value: Any) -> list[Any]:
        """What each process has, in order."""
        from accelerate.utils import gather_object

        values: list[Any] = gather_object([value])
        return values

    def same_buffers(self, model: nn.Module) -> None:
        """The statistics of the main process for all, as each saw other images."""
        if self.count > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def wait(self) -> None:
        """Until all processes are here."""
        self._accelerator.wait_for_everyone()


def is_main_process() -> bool:
    """Whether this process speaks for all; known before they have found each other."""
    return os.environ.get("RANK", "0") == "0"
