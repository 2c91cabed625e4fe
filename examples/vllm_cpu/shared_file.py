"""Weights that reach vLLM through a safetensors file, best in shared memory: the transfer for machines without a GPU.

The CPU build packs weights when it loads them, so new ones go through vLLM's layerwise reload, which loads and packs
as at start-up. Meanwhile the layers are empty: all of it is done in one call, and an engine that is not paused can run
passes before and after it. A parameter that the file lacks keeps its old value, without a message from vLLM.
"""

from dataclasses import dataclass
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "shared_file"
_registered: set[str] = set()


@dataclass
class NothingToAgreeOn(WeightTransferInitInfo):
    """The file's name comes with every update."""


@dataclass
class WeightFile(WeightTransferUpdateInfo):
    """Where one version of the weights lies."""

    path: str


class SharedFileTransfer(WeightTransferEngine[NothingToAgreeOn, WeightFile]):
    """Reads whole files of weights, named as in the checkpoint."""

    init_info_cls = NothingToAgreeOn
    update_info_cls = WeightFile

    def init_transfer_engine(self, init_info: NothingToAgreeOn) -> None:
        """Nothing to connect to."""

    def start_weight_update(self) -> None:
        """Nothing to prepare: a file holds all there is."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Take one file into use. The inherited method then waits for an accelerator, and there is none."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: WeightFile) -> None:
        """Empty the layers, load the file into them and have them pack what came."""
        initialize_layerwise_reload(self.model)
        self.model.load_weights(load_file(update_info.path).items())
        finalize_layerwise_reload(self.model, self.model_config)

    def finish_weight_update(self) -> None:
        """Nothing is left to do."""

    def shutdown(self) -> None:
        """Nothing is held."""


def register() -> None:
    """Make the transfer known to this process as the backend `shared_file`."""
    if BACKEND not in _registered:
        _registered.add(BACKEND)
        WeightTransferEngineFactory.register_engine(BACKEND, SharedFileTransfer)
