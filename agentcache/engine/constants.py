"""Names by which the plug-in's parts are entered, for processes and modules that do not load vLLM's internals."""

from __future__ import annotations

# As vLLM's variable VLLM_PLUGINS names us.
PLUGIN = "agentcache"

# vLLM's `scheduler_cls`.
SCHEDULER_CLASS = "agentcache.engine.scheduler.AgentScheduler"

# One of vLLM's `logits_processors`, for the V1 model runner.
FORCED_REPLY_PROCESSOR = "agentcache.engine.replies.forced_reply:ForcedReplyProcessor"

# In `vllm_xargs` of a request: the token ids of the reply that the client dictates.
REPLY_ARGUMENT = "agentcache_reply_token_ids"

# In `vllm_xargs` of a request whose reply is dictated: JSON text, a list of [tool, arguments as JSON text], the calls
# that the recorded reply stands for. For recordings without text, where there is nothing to parse.
CALLS_ARGUMENT = "agentcache_tool_calls"

# In a request's extra arguments, set by our API server where the client declared tools: their names, or true where some
# have none.
TOOLS_DECLARED_ARGUMENT = "agentcache_tools_declared"

# Beside it where a reply has to call tools, which many parsers expect in another form: true, or the one tool's name.
TOOL_CHOICE_ARGUMENT = "agentcache_tool_choice"

# In a request's extra arguments, set by our API server: the roles of the prompt's messages, a letter each
# (`marks.ROLES`).
ROLES_ARGUMENT = "agentcache_roles"

# Beside it: digests of what the prompt asks, and of what the last reply in it was asked (`marks.Questions`).
QUESTIONS_ARGUMENT = "agentcache_questions"

# Beside it where the client says which of its session's agents asks: that one's id.
AGENT_ARGUMENT = "agentcache_agent"

# Beside it the agent that began that one, which is none for the main agent's.
PARENT_ARGUMENT = "agentcache_parent"

# Beside it what the client's `agentic_context` expects of the request (`marks.Expected`).
EXPECTED_ARGUMENT = "agentcache_expected"

# Beside it where a response goes on from another: that one's id.
CONTINUES_ARGUMENT = "agentcache_continues"

# Beside it: digests of what the client sent (agentcache/front_end/sent_digests.py).
SENT_ARGUMENT = "agentcache_sent"

# In a request's extra arguments, set by our API server where its job has moved: how many tokens of its prompt are
# probably cached at the engine that the job has left.
LEFT_ARGUMENT = "agentcache_left_tokens"

# The environment variable that tells the engine, whose process has the environment of the server's, the live report's
# address. Not in additional_config, which goes into the key of compiled code: with each port the model would be
# compiled anew. And vLLM's configuration takes no attribute of ours: it refuses to copy one.
REPORT_URL_VARIABLE = "AGENTCACHE_REPORT_URL"

# In the id of a fill request, between the id of the request that it is for and a number.
FILL_MARK = "#fill-"

# Behind the id of a request whose reply is whole and calls no tool, among the ids of finished requests that an engine
# sends to a data-parallel client. vLLM passes over ids that it does not know.
ANSWER_MARK = "#answered"

# Methods of the engine core that a front end calls by name (vLLM's utility calls).
JOB_METHOD = "agentcache_job"
JOBS_METHOD = "agentcache_jobs"
RELEASE_METHOD = "agentcache_release"
EXPIRED_METHOD = "agentcache_expired"
