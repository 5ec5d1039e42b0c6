"""A KV connector as of a prefill or a decode instance, in the scheduler alone: nothing is moved.

As vLLM's own (NIXL, Mooncake) do, it keeps a prefilled request's blocks until they have been read, and has a request
wait until its prompt has arrived.
"""

from __future__ import annotations

from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

CONNECTOR = KVTransferConfig(
    kv_connector="HandingConnector", kv_connector_module_path="handing_connector", kv_role="kv_both"
)
DECODE_ELSEWHERE = {"do_remote_decode": True, "do_remote_prefill": False}
PREFILLED_ELSEWHERE = {"do_remote_decode": False, "do_remote_prefill": True}


class HandingConnector(KVConnectorBase_V1, SupportsHMA):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            return request.num_prompt_tokens - num_computed_tokens, True
        return 0, False

    def update_state_after_alloc(self, request: Request, *_: Any) -> None:
        if request.kv_transfer_params:
            # As NIXL does: one transfer a request.
            request.kv_transfer_params["do_remote_prefill"] = False

    def build_connector_meta(self, *_: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Request, *_: Any) -> tuple[bool, dict[str, Any] | None]:
        return bool((request.kv_transfer_params or {}).get("do_remote_decode")), None

    request_finished_all_groups = request_finished

    def start_load_kv(self, *_: Any, **__: Any) -> None: ...
    def wait_for_layer_load(self, *_: Any) -> None: ...
    def save_kv_layer(self, *_: Any, **__: Any) -> None: ...
    def wait_for_save(self) -> None: ...


def tell_sent(scheduler: Any, name: str) -> None:
    """The decode instance has read the request's blocks."""
    _tell(scheduler, KVConnectorOutput(finished_sending={name}))


def tell_received(scheduler: Any, name: str) -> None:
    """The request's prompt has arrived."""
    _tell(scheduler, KVConnectorOutput(finished_recving={name}))


def _tell(scheduler: Any, output: KVConnectorOutput) -> None:
    scheduler._update_from_kv_xfer_finished(output)
