"""Sentences about four topics, and a small transformer whose adapters learn to classify them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

RunConfig = Mapping[str, Any]

TOPICS, WORDS, LENGTH = 4, 200, 16  # a sentence has 16 words
OWN, SHARE = 12, 0.6  # number of words that belong to a topic, and their share in its sentences


def new_model(config: RunConfig) -> PeftModel:
    """Return a frozen transformer with random weights, and adapters in all linear layers of its blocks.

    The frozen part stands for a pretrained model that every node has; here it follows from the seed.
    """
    sizes = BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH, num_labels=TOPICS, initializer_range=0.1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["seed"])
        model = BertForSequenceClassification(sizes)
        rank, layers = config["rank"], ["query", "key", "value", "dense"]
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers)
        return get_peft_model(model, lora)


def sentences(config: RunConfig, client: int, count: int) -> tuple[Tensor, Tensor]:
    """Return word ids, int64 (count, LENGTH), and topics, int64 (count,); client -1 is the evaluation set."""
    words = np.random.default_rng(config["seed"])
    own = np.stack([words.choice(WORDS, OWN, replace=False) for _ in range(TOPICS)])
    random = np.random.default_rng((config["seed"], client + 1))
    topics = random.integers(0, TOPICS, count)
    chosen = own[topics[:, None], random.integers(0, OWN, (count, LENGTH))]
    ids = np.where(random.random((count, LENGTH)) < SHARE, chosen, random.integers(0, WORDS, (count, LENGTH)))
    return torch.from_numpy(ids), torch.from_numpy(topics)


def train(
    model: PeftModel, x: Tensor, y: Tensor, config: RunConfig, optimizer: torch.optim.Optimizer, seed: int
) -> float:
    """Train the adapters, and return the mean loss."""
    model.train()
    random, total = torch.Generator().manual_seed(seed), 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for dropout
        for _ in range(config["local-steps"]):
            rows = torch.randint(len(x), (config["batch-size"],), generator=random)
            optimizer.zero_grad()
            loss = model(input_ids=x[rows], labels=y[rows]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
    return total / config["local-steps"]


def evaluate(model: PeftModel, x: Tensor, y: Tensor) -> float:
    """Return the accuracy."""
    model.eval()
    with torch.no_grad():
        return float((model(input_ids=x).logits.argmax(1) == y).float().mean())
