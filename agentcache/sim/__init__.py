"""The real scheduler under a virtual clock: policies compared on a GPU that is only a model of one."""
