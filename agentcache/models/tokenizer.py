"""Trains the tokenizer of the models that the project makes: byte-level BPE, ChatML turns, Hermes tool calls."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentcache.models.corpus import read_corpus
from agentcache.models.shapes import TINY

END_OF_TURN = "<|im_end|>"
_PADDING = "<|endoftext|>"
_CONTROL_TOKENS = (_PADDING, "<|im_start|>", END_OF_TURN)
# The tool-call parser reads these from the text, so they must survive `skip_special_tokens`.
_TOOL_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CHAT_TEMPLATE_FILE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train on the corpus (about two seconds). The result is the same on every run of one Python version."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY.vocabulary - len(_CONTROL_TOKENS) - len(_TOOL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(read_corpus().splitlines(keepends=True), trainer)
    bpe.add_special_tokens([AddedToken(token, special=True) for token in _CONTROL_TOKENS])
    bpe.add_tokens([AddedToken(token, special=False) for token in _TOOL_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END_OF_TURN, pad_token=_PADDING, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE_FILE.read_text()
    return tokenizer
