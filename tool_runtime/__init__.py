"""The agent runtime: jobs, tools, their execution, and the loop between model and tools. Imports no engine."""
