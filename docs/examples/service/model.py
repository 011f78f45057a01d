"""A tiny decoder with random weights and a real KV cache. It writes nonsense, at a real cost."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256  # bytes
HEAD_SIZE = 64


class Piece(NamedTuple):
    """Tokens of one sequence to compute in a step, where its cache is and what it holds."""

    slot: int
    tokens: list[int]
    n_context: int


class Layer(nn.Module):
    """Attention over a sequence's own cache, and a feed-forward net."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.n_heads = hidden // HEAD_SIZE
        self.norm_in, self.norm_out = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor, pieces: list[Piece], cache: Tensor) -> Tensor:
        """Takes the tokens of all pieces as rows; `cache` is this layer's [2, slot, at, head]."""
        qkv = self.qkv(self.norm_in(x)).view(len(x), 3, self.n_heads, HEAD_SIZE)
        mixed, at = torch.empty_like(x), 0
        for slot, tokens, n_context in pieces:
            n, total = len(tokens), n_context + len(tokens)
            cache[:, slot, n_context:total] = qkv[at : at + n, 1:].transpose(0, 1)
            query = qkv[None, at : at + n, 0].transpose(1, 2)
            key, value = cache[:, slot, None, :total].transpose(2, 3)
            mask = None
            if n > 1:  # a token sees what stands before it
                mask = torch.ones(n, total, dtype=torch.bool, device=x.device).tril(n_context)
            seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            mixed[at : at + n] = seen[0].transpose(0, 1).reshape(n, -1)
            at += n
        x = x + self.out(mixed)
        return x + self.down(functional.silu(self.up(self.norm_out(x))))


class Decoder(nn.Module):
    """The model, with a cache of `n_slots` sequences of up to `max_len` tokens."""

    def __init__(self, hidden: int, n_layers: int, n_slots: int, max_len: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, hidden)
        self.layers = nn.ModuleList(Layer(hidden) for _ in range(n_layers))
        self.norm = nn.RMSNorm(hidden)
        rate = torch.exp(torch.arange(0, hidden, 2) * (-9.2 / hidden))
        angle = torch.arange(max_len)[:, None] * rate
        self.register_buffer("places", torch.cat((angle.sin(), angle.cos()), 1))
        shape = (n_layers, 2, n_slots, max_len, hidden // HEAD_SIZE, HEAD_SIZE)
        self.register_buffer("cache", torch.zeros(shape))

    @torch.inference_mode()
    def forward(self, pieces: list[Piece]) -> list[int]:
        """Computes all pieces in one pass; returns the likeliest next token of each."""
        device = self.cache.device
        tokens = torch.tensor([token for piece in pieces for token in piece.tokens], device=device)
        places = [
            place
            for piece in pieces
            for place in range(piece.n_context, piece.n_context + len(piece.tokens))
        ]
        x = self.embed(tokens) + self.places[torch.tensor(places, device=device)]
        for layer, cache in zip(self.layers, self.cache, strict=True):
            x = layer(x, pieces, cache)
        last = torch.tensor([len(piece.tokens) for piece in pieces], device=device).cumsum(0) - 1
        logits = self.norm(x[last]) @ self.embed.weight.T
        answer: list[int] = logits.argmax(1).tolist()
        return answer
