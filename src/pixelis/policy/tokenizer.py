"""Text to token ids and back for any Qwen-style tokenizer, and the training of nano's.

Text that a person typed or a tool read never becomes a control token: a tag in it is split before encoding, so that its
letters remain and its function does not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pixelis.core.errors import ConfigError
from pixelis.nano.quoting import QUOTES

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<answer>", "</answer>")
TAG_PATTERN = re.compile(r"<[^<>\s]+>")
"""Added tokens of this form are control tokens, including those that only some models have, such as <think>."""
NANO_WORD_COUNT = 600
"""Frequent words that form one token with the space before them; all others have the same tokens everywhere."""
WORD_AFTER_WORD = re.compile(r"(?<=[A-Za-z0-9]) ([a-z]+)\b")
"""Lower case only: names and headings also occur on pages, without a space before them, and keep the same tokens."""
MIN_WORD_COUNT = 30
OTHER_PIECES = r"[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9] ?| |\n|\s"
"""Punctuation takes the spaces beside it. Before numbers and words a space is its own token, so that a rare word has
the same tokens wherever it is copied."""
OCR_SEPARATORS = ('" at [', '; "')
"""Between a line's text and its box, and between lines: a box follows directly on the last letters of its line."""


class PolicyTokenizer:
    """A Hugging Face tokenizer with the ids of its control tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.hf_tokenizer = tokenizer
        added = {str(token): int(k) for k, token in tokenizer.added_tokens_decoder.items()}
        missing = [token for token in SPECIAL_TOKENS if token not in added]
        if missing:
            raise ConfigError(f"the tokenizer lacks {', '.join(missing)}: want one of the Qwen-VL family")
        self.control_ids = {token: k for token, k in added.items() if TAG_PATTERN.fullmatch(token)}
        self.end_id = added["<|im_end|>"]
        self.pad_id = added["<|endoftext|>"]
        self.image_id = added["<|image_pad|>"]
        control = sorted(self.control_ids.items())
        self.banned_ids = tuple(k for token, k in control if token.startswith("<|") and k != self.end_id)
        """Never sampled and excluded from the softmax: a sampled image token would break the sequence."""
        self._tag = re.compile("|".join(re.escape(t) for t in sorted(self.control_ids, key=len, reverse=True)))

    @classmethod
    def open(cls, folder: str | Path) -> PolicyTokenizer:
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False))

    def __len__(self) -> int:
        return len(self.hf_tokenizer)

    @property
    def has_quote_tokens(self) -> bool:
        """Whether answers may quote OCR lines (`quoting`)."""
        return all(quote in self.control_ids for quote in QUOTES)

    @property
    def tags_are_tokens(self) -> bool:
        """Whether the tags of calls and answers are single tokens."""
        return all(tag in self.control_ids for tag in TAG_TOKENS)

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Token ids. Without `control`, tags and special tokens in the text are plain letters."""
        # a tag is split between `<` and the rest
        cuts = [] if control else [match.start() + 1 for match in self._tag.finditer(text)]
        return [k for start, end in pairwise([0, *cuts, len(text)]) for k in self._ids(text[start:end])]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.hf_tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _ids(self, text: str) -> list[int]:
        if not text:
            return []
        # transformers' own `encode` builds a batch of one with masks and offsets, and takes twice as long
        return list(self.hf_tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def train_tokenizer(
    texts: Iterable[str], schemas: Sequence[dict[str, Any]], *, vocabulary: int = 1600, quotes: bool = False
) -> Any:
    """nano's tokenizer: byte-level BPE with one token for each coordinate, key of a call and, optionally, quote."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    corpus = list(texts)
    words = "|".join(frequent_words(corpus, NANO_WORD_COUNT))
    inner = Tokenizer(models.BPE())
    pattern = Regex(f" (?:{words})(?![A-Za-z])|{OTHER_PIECES}" if words else OTHER_PIECES)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, behavior="isolated"), byte_level])
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False)
    control = (*SPECIAL_TOKENS, *TAG_TOKENS, *(QUOTES if quotes else ()))
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.pad_token, tokenizer.eos_token = SPECIAL_TOKENS[0], SPECIAL_TOKENS[2]
    coordinates = [AddedToken(f"{k / 100:.2f}", normalized=False, single_word=True) for k in range(101)]
    # In a box a coordinate takes the sign after it, so that coordinates are adjacent; in text the space before.
    shapes = ("{:.2f}, ", "{:.2f}]", " {:.2f}")
    coordinate_pieces = [shape.format(k / 100) for k in range(101) for shape in shapes]
    pieces = [*coordinate_pieces, *json_pieces(schemas), *OCR_SEPARATORS]
    tokenizer.add_tokens([*coordinates, *(AddedToken(text, normalized=False) for text in pieces)])
    from pixelis.policy.chat_template import CHAT_TEMPLATE

    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def json_pieces(schemas: Sequence[dict[str, Any]]) -> list[str]:
    """The parts of calls, from their schemas: the head of each tool's call, and each argument's key."""
    heads, keys = [], dict[str, None]()
    for schema in schemas:
        function = schema["function"]
        heads.append(f'{{"name": {json.dumps(function["name"])}, "arguments": {{')
        keys |= {f"{json.dumps(name)}: ": None for name in function["parameters"]["properties"]}
    return [*heads, *keys, *(f", {key}" for key in keys), "}}", '"}}', "]}}"]


def frequent_words(texts: Iterable[str], limit: int) -> list[str]:
    """Words that often follow another word, by frequency, then alphabetically."""
    counts = Counter(word for text in texts for word in WORD_AFTER_WORD.findall(text))
    ranked = sorted((-count, word) for word, count in counts.items() if count >= MIN_WORD_COUNT)
    return [word for _, word in ranked[:limit]]
