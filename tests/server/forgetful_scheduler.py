"""A scheduler that makes gaps in its cache: for servers, whose engine is in another process."""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request

from agentcache.engine.scheduler import AgentScheduler

# The argument of a request, in `vllm_xargs`, that has its first blocks dropped when it ends; how many it says.
FORGET = "forget_blocks"


class ForgetfulScheduler(AgentScheduler):
    """Drops the first blocks of each request that asks for it."""

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        asked = (request.sampling_params.extra_args or {}) if request.sampling_params else {}
        if FORGET in asked and not self.is_fill_request(request.request_id):
            blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks[0][: int(asked[FORGET])]
            self.kv_cache_manager.block_pool.evict_blocks({block.block_id for block in blocks})
        return super()._free_request(request, *args, **kwargs)
