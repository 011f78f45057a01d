"""A tiny llama model with random weights as a GGUF file, and its server, for tests of llama.cpp.

`python -m tests.tracer.tiny_gguf FILE PORT [SLOTS]` makes the file and serves it until a signal.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

N_LAYERS, HIDDEN, HEAD = 4, 256, 64
SPECIAL = ("<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>")


def byte_letters() -> list[str]:
    """The printable letter that byte-level tokenizers write for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in shown}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len([b for b in range(byte) if b not in shown])))
    return [letters[byte] for byte in range(256)]


def write(path: Path) -> None:
    """Writes the model: byte tokens, a few merges, weights by a fixed seed."""
    gguf: Any = import_module("gguf")
    np: Any = import_module("numpy")
    merges = ["t h", "i n", "e r", "a n"]
    tokens = [*SPECIAL, *byte_letters(), *(merge.replace(" ", "") for merge in merges)]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_name("tiny-random")
    out.add_context_length(4096)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(N_LAYERS)
    out.add_feed_forward_length(2 * HIDDEN)
    out.add_head_count(HIDDEN // HEAD)
    out.add_head_count_kv(HIDDEN // HEAD)
    out.add_rope_dimension_count(HEAD)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_vocab_size(len(tokens))
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([control if token in SPECIAL else normal for token in tokens])
    out.add_token_merges(merges)
    out.add_bos_token_id(0)
    out.add_eos_token_id(1)
    out.add_pad_token_id(2)
    out.add_add_bos_token(True)
    out.add_chat_template(
        "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
        "{{ eos_token }}{% endfor %}<|assistant|>"
    )
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) * 0.02
        out.add_tensor(f"{name}.weight", values.astype(np.float32))

    def ones(name: str) -> None:
        out.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))

    weights("token_embd", len(tokens), HIDDEN)
    ones("output_norm")
    weights("output", len(tokens), HIDDEN)
    for layer in range(N_LAYERS):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm")
        ones(f"{block}.ffn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(f"{block}.{part}", HIDDEN, HIDDEN)
        weights(f"{block}.ffn_gate", 2 * HIDDEN, HIDDEN)
        weights(f"{block}.ffn_up", 2 * HIDDEN, HIDDEN)
        weights(f"{block}.ffn_down", HIDDEN, 2 * HIDDEN)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def serve(path: Path, port: int, n_slots: int) -> None:
    """Serves the model until a signal."""
    ends = {signal.SIGTERM, signal.SIGINT}
    # Before there are other threads, any of which would take the signal in place of the wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    xllamacpp: Any = import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = n_slots
    parameters.n_ctx = 4096 * n_slots
    parameters.n_batch = 128
    parameters.n_ubatch = 128
    parameters.endpoint_metrics = parameters.endpoint_slots = True
    parameters.warmup = False
    parameters.cpuparams.n_threads = 1  # more of them spin against each other on few cores
    server = xllamacpp.Server(parameters)
    assert server is not None
    signal.sigwait(ends)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 2)
