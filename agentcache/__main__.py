"""Runs the command line as `python -m agentcache`."""

import sys

from agentcache.cli import main

sys.exit(main())
