"""vLLM's engine as a server and a benchmark hold it: clients, engine cores, executors."""

from __future__ import annotations

from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.protocol import EngineClient
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine import core_client
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.engine.core_client import AsyncMPClient, DPLBAsyncMPClient
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor
