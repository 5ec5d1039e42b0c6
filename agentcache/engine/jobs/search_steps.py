"""Requests for one token and what else it might be: the steps of a search that some program makes, such as a beam's."""

from __future__ import annotations

from array import array
from collections import OrderedDict

from agentcache.engine.vllm.types import Request

_MAX_STEPS = 10_000


def generates_text(request: Request) -> bool:
    """Tell whether it generates text in one go, as embeddings and live streams of input do not."""
    return request.pooling_params is None and not request.resumable


def is_search_step(request: Request) -> bool:
    """Tell whether the request is one step of a search that picks each next token itself, and so ends no turn.

    vLLM makes its beams so, online and offline, and the labels that it chooses among. A request that a connector has
    other plans with is a whole one, of which another engine decodes the rest.
    """
    params = request.sampling_params
    if params is None or params.max_tokens != 1 or request.kv_transfer_params:
        return False
    return params.logprobs is not None or params.logprob_token_ids is not None


class SearchSteps:
    """The latest steps, to tell where a search begins. Costs O(prompt) a step; knows steps by 64 bits each."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, None] = OrderedDict()

    def begins_search(self, request: Request) -> bool:
        """Note a step; tell whether it goes on from none before, by one token more than that one's prompt."""
        prompt = memoryview(array("Q", request.prompt_token_ids or ()))
        step, before = (
            hash((request.session_id, request.cache_salt, part.tobytes())) for part in (prompt, prompt[:-1])
        )
        begins = not prompt or before not in self._steps
        self._steps[step] = None
        self._steps.move_to_end(step)
        if len(self._steps) > _MAX_STEPS:
            self._steps.popitem(last=False)
        return begins
