"""vLLM's engine in this process, which pauses and sleeps by the code of an engine process: only that can wait."""

from __future__ import annotations

from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from live_engine import LiveEngine
from vllm.v1.engine import PauseMode
from vllm.v1.engine.core import EngineCoreProc
from vllm_internals import tell_idle


class PausableEngine(LiveEngine):
    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.core.__class__ = EngineCoreProc
        self.core.engines_running = False
        self.core.output_queue = SimpleQueue()

    def pause(self, mode: PauseMode, *, clear_cache: bool = True) -> None:
        self._complete(self.core.pause_scheduler(mode, clear_cache))

    def resume(self) -> None:
        self.core.resume_scheduler()

    def sleep(self, level: int, mode: PauseMode) -> None:
        self._complete(self.core.sleep(level, mode))

    def wake_up(self, tags: list[str] | None = None) -> bool:
        return bool(self.core.wake_up(tags))

    def load_weights(self, path: str) -> None:
        self.core.collective_rpc("reload_weights", kwargs={"weights_path": path})

    def has_ended(self, name: str) -> bool:
        return name in self._done

    def take_end(self, name: str) -> str | None:
        """Why the request ended."""
        return self._done.pop(name).outputs[0].finish_reason

    def _complete(self, pause: Future[Any] | None) -> None:
        """As the loop of an engine process does."""
        while self.core.has_work():
            self.step()
        tell_idle(self.core)
        while not self.core.output_queue.empty():
            _, outputs = self.core.output_queue.get_nowait()
            processed = self._engine.output_processor.process_outputs(outputs.outputs)
            self._done |= {output.request_id: output for output in processed.request_outputs}  # type: ignore[misc]
        if pause is not None:
            pause.result(timeout=0)
        self.scheduler.check_integrity()
