"""The front end: what runs in a process that takes requests, be it an API server or a program with an LLM object.

vLLM runs `plugin.py` in every process; `hooks.py` puts in the rest once engine arguments name agentcache. At its start
the engine gets what `server_options.py` and `offloading.py` read of the options. With each request it gets marks: those
that `descriptions.py` and `sent_digests.py` make, `request_marks.py` joins to it, and `forced_replies.py` takes replies
that a client forces.

With several engines `placing_client.py` has `placer.py` choose the engine of each request, and asks
`agentcache/policy/replicas/`. API servers that share engines share one placement: `shared_placement.py` asks
`placement_process.py`.

An engine core runs nothing of this but the plug-in, which finds nothing to do there.
"""
