"""A tokenizer of bytes with a chat template, which nothing has to be downloaded for."""

from __future__ import annotations

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from rlhfless.training.tasks import PretrainedTokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}{% if add_generation_prompt %}<me>{% endif %}"
)


def byte_tokenizer(chat: bool = True, bos: bool = False) -> PretrainedTokenizer:
    """Every byte is a token; 0 pads, 1 ends a response, 2 begins a text if ``bos``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<eos>": 1, "<bos>": 2} | {symbol: i for i, symbol in enumerate(alphabet, start=3)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )
    wrapped.chat_template = TEMPLATE if chat else None
    return PretrainedTokenizer(wrapped)
