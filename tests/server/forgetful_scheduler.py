"""A scheduler whose cache always has a gap in front: for servers, whose engine is in another process."""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request

from agentcache.engine.scheduler import AgentScheduler

FORGOTTEN = 3


class ForgetfulScheduler(AgentScheduler):
    """Drops the first blocks of each of the clients' requests when it ends."""

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks[0][:FORGOTTEN]
        if not self.is_fill_row(request.request_id):
            self.kv_cache_manager.block_pool.evict_blocks({block.block_id for block in blocks})
        return super()._free_request(request, *args, **kwargs)
