"""The starting policy before training: a small Llama whose first layer already looks one and two tokens back."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, LAYERS, HEADS, KEY_VALUE_HEADS = 128, 3, 4, 2
# At the usual 1e4 most of a head's 16 rotations turn within a trajectory, and few are left to match content with.
ROPE_THETA = 1e7
EMBEDDING_STD = 0.08
LOOK_BACK = 3.0  # sharpness of the two heads; with 3 a quarter of the attention is where it belongs


def make_model(vocabulary_size: int, seed: int) -> LlamaForCausalLM:
    """An untrained policy of about 0.8 M parameters.

    Llama and not Qwen2: for a Qwen2 folder `AutoTokenizer` puts Qwen2's splitting rules in the place of the saved ones.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        attention_bias=True,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("eager")  # under bf16 autocast on a CPU a third faster than sdpa
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(EMBEDDING_STD / config.initializer_range)
        for head, distance in ((0, 1), (1, 2)):
            _look_back_(model, head, distance)
    return model


def _look_back_(model: Any, head: int, distance: int) -> None:
    """Biases that make a head of the first layer attend `distance` tokens back, whatever the tokens are.

    Copying a name goes on from where its syllable stood before, which needs to know each token's predecessor. Training
    finds such heads by itself, but slowly: with them reading is learned in a third of the time. The key bias is a
    constant, the query bias the same turned back by `distance` positions: there both agree.
    """
    attention, angles = model.model.layers[0].self_attn, model.model.rotary_emb.inv_freq * distance
    size = HIDDEN // HEADS
    key = head * KEY_VALUE_HEADS // HEADS * size
    attention.k_proj.bias[key : key + size // 2] = LOOK_BACK
    attention.q_proj.bias[head * size : head * size + size] = LOOK_BACK * torch.cat([angles.cos(), -angles.sin()])
