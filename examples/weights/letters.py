"""What the trainer and its followers share: a small transformer, and text for it to learn."""

import hashlib
import random

import torch
from torch import nn
from torch.nn import functional

LETTERS = " .abcdefghijklmnopqrstuvwxyz"
CONTEXT = 48
NOUNS = ["cat", "dog", "horse", "rabbit", "child", "neighbour", "king"]
VERBS = ["sees", "follows", "calls", "forgets", "finds"]


class Text:
    """Endless sentences such as "the old cat sees a horse." Equal seeds give equal sentences."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Letters, and the letter that follows each of them."""
        rows = torch.tensor([self._letters() for _ in range(size)])
        return rows[:, :-1], rows[:, 1:]

    def _letters(self) -> list[int]:
        text = ""
        while len(text) <= CONTEXT:
            choose = self._random.choice
            subject = f"{choose(['the', 'a'])} {choose(['', 'old ', 'young '])}{choose(NOUNS)}"
            text += f"{subject} {choose(VERBS)} {choose(['the', 'a'])} {choose(NOUNS)}. "
        return [LETTERS.index(letter) for letter in text[: CONTEXT + 1]]


class Block(nn.Module):
    """One layer: attention to the letters before, then two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        query, key, value = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Predicts the next letter."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(LETTERS), width)
        self.place = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        x = self.letter(letters) + self.place.weight[: letters.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def loss_of(net: nn.Module, letters: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """The mean loss of the predicted letters."""
    return functional.cross_entropy(net(letters).float().flatten(0, 1), following.flatten())


@torch.no_grad()
def next_letter(net: Transformer, text: str) -> str:
    """Draws the letter that follows a text."""
    letters = torch.tensor([[LETTERS.index(letter) for letter in text[-CONTEXT:]]])
    chances = net(letters)[0, -1].float().softmax(dim=0)
    return LETTERS[int(torch.multinomial(chances, 1))]


def digest(weights: dict[str, torch.Tensor]) -> str:
    """A digest of all weights: it is the same only if every bit is."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(weights[name].detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
