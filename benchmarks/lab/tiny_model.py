"""Makes a tiny model with random weights and a tokenizer of its own, without a hub.

    python tiny_model.py FOLDER [LAYERS HEADS]

It is run by the interpreter that has torch and transformers, which need not be the tests' own.
"""

from __future__ import annotations

import sys
from pathlib import Path


def tokenizer_files(folder: Path) -> int:
    """Writes a byte-level tokenizer trained on this library's source; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    sources = sorted(Path(sys.modules["pathlib"].__file__ or "").parent.glob("*.py"))[:40]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in sources]
    made.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>"
    )
    wrapped.chat_template = (
        "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
        "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    wrapped.save_pretrained(folder)
    return len(wrapped)


def tiny_config(vocabulary: int, n_layers: int = 2, n_heads: int = 2) -> object:
    """A Llama; its heads are of 64, since vLLM's CPU attention has no smaller ones."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=64 * n_heads, intermediate_size=128 * n_heads,
        num_hidden_layers=n_layers, num_attention_heads=n_heads,
        num_key_value_heads=max(1, n_heads // 2), head_dim=64,
        max_position_embeddings=32768, bos_token_id=0, eos_token_id=1, pad_token_id=2,
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip


def make(folder: Path, n_layers: int = 2, n_heads: int = 2) -> None:
    """Writes the model."""
    import torch
    from transformers import LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = tokenizer_files(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(tiny_config(vocabulary, n_layers, n_heads)).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]), *map(int, sys.argv[2:4]))
