FROM vllm/vllm-openai:v0.32.0
COPY . /opt/agentcache
RUN apt-get update && apt-get install -y --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir '/opt/agentcache[cuda]'
ENTRYPOINT ["agentcache", "serve"]
