"""How fast jobs' contexts grow from turn to turn."""

from __future__ import annotations

from collections import deque

# How far the growth is looked ahead, about what jobs that have not come far still have before them.
AHEAD_TURNS = 5
# The latest turns that count. Before anything is known a context is taken to double in those turns; a guess that
# weighs as much as so many turns.
_WINDOW = 1000
_PRIOR, _PRIOR_TURNS = 1 / AHEAD_TURNS, 8


class ContextGrowth:
    """Learns from every turn, whatever its agent: what one agent's jobs add would take longer to learn."""

    def __init__(self) -> None:
        # Tokens of a turn's prompt, and by how many the prompt of its job's next turn was longer.
        self._turns: deque[tuple[int, int]] = deque(maxlen=_WINDOW)
        self._prompts = self._added = 0

    def note_turn(self, prompt_tokens: int, next_prompt_tokens: int) -> None:
        """Note two turns of a job, one after the other, by the tokens of their prompts.

        Shorter than the one before is the prompt of another thread, or of a context that was cut: neither tells.
        """
        if not 0 < prompt_tokens <= next_prompt_tokens:
            return
        if len(self._turns) == _WINDOW:
            prompt, added = self._turns[0]
            self._prompts -= prompt
            self._added -= added
        turn = prompt_tokens, next_prompt_tokens - prompt_tokens
        self._turns.append(turn)
        self._prompts += turn[0]
        self._added += turn[1]

    @property
    def ratio(self) -> float:
        """The tokens that a job is still to add to a prompt in `AHEAD_TURNS` turns, as a multiple of the prompt's."""
        known = len(self._turns)
        seen = self._added / self._prompts if known else 0.0
        return AHEAD_TURNS * (known * seen + _PRIOR_TURNS * _PRIOR) / (known + _PRIOR_TURNS)
