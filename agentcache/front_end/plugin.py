"""Entry point in vLLM's group `vllm.general_plugins`: run in every process of every vLLM of the environment."""

from __future__ import annotations

import logging
from multiprocessing import parent_process

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.errors import in_one_line

# vLLM's own `init_logger` is not needed for it, and so cannot be missing.
logger = logging.getLogger("vllm.agentcache")


def register() -> None:
    """Watch for our engines. Raises nothing and loads next to nothing: at this time any engine may be starting."""
    try:
        from agentcache.engine.vllm.compat import check_release
        from agentcache.front_end.hooks import watch_engine_arguments

        watch_engine_arguments()
        check_release()
        # By name: a logger does not ask the filters of the loggers above it.
        logging.getLogger("vllm.config.scheduler").addFilter(_is_news)
    except Exception as error:
        # Servers without agentcache must come up on any vLLM. One that names it is told why it cannot.
        if parent_process() is None:
            # Once a server.
            logger.warning("agentcache stands aside: %s", in_one_line(error))


def _is_news(record: logging.LogRecord) -> bool:
    """Tell what vLLM warns of any custom scheduler from the rest: ours checks vLLM's interface, and steps overlap."""
    return not (str(record.msg).startswith("Using custom scheduler class") and record.args == (SCHEDULER_CLASS,))
