# Another that works: 0.33.0, by --build-arg VLLM=0.33.0 (docs/vllm-versions.md). pip leaves the image's own vLLM alone.
ARG VLLM=0.32.0
FROM vllm/vllm-openai:v${VLLM}
COPY . /opt/agentcache
RUN apt-get update && apt-get install -y --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir '/opt/agentcache[cuda]'
ENTRYPOINT ["agentcache", "serve"]
