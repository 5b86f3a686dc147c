#!/usr/bin/env python3
"""Makes the small random models of this folder with the transformers package, and the logits and gradients that it computes.

    pip install torch transformers && tests/llama/make_models.py

For each family: config.json, model.safetensors (or several files and an index) as save_pretrained writes them, and
expected.safetensors: token ids, and the logits that transformers computes from the weights in the files. It computes in float64,
except for its norms and angles, which are always float32. Weights are larger than in an untrained model, so that the logits depend
on every layer. For the families in GRADIENTS also gradients.safetensors: the same ids, and for each parameter the gradient of the
mean cross-entropy of all tokens but the first, each predicted from the tokens before it.
"""
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4)
LLAMA = dict(SIZES, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False)
MODELS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**LLAMA), torch.float32, "5GB"),
    "qwen3": (transformers.Qwen3ForCausalLM,
              transformers.Qwen3Config(**dict(LLAMA, head_dim=32, rms_norm_eps=1e-6, num_hidden_layers=3,
                                              rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
              torch.bfloat16, "60KB"),
    "gemma2": (transformers.Gemma2ForCausalLM,
               transformers.Gemma2Config(**dict(LLAMA, rms_norm_eps=1e-6, tie_word_embeddings=True, num_hidden_layers=3,
                                                query_pre_attn_scalar=24, sliding_window=8)), torch.float16, "5GB"),
    "gpt2": (transformers.GPT2LMHeadModel,
             transformers.GPT2Config(vocab_size=96, n_positions=48, n_embd=64, n_layer=2, n_head=4), torch.float32, "5GB"),
    "llama31": (transformers.LlamaForCausalLM,
                transformers.LlamaConfig(**dict(LLAMA, num_hidden_layers=1, max_position_embeddings=128,
                                                rope_parameters={"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0,
                                                                 "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                                 "original_max_position_embeddings": 16})),
                torch.bfloat16, "5GB"),
    "qwen2": (transformers.Qwen2ForCausalLM,
              transformers.Qwen2Config(**dict(SIZES, num_key_value_heads=2, rms_norm_eps=1e-6, num_hidden_layers=1,
                                              tie_word_embeddings=True,
                                              rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
              torch.bfloat16, "5GB"),
}

GRADIENTS = {"llama", "qwen3"}


def main():
    for seed, (name, (kind, config, dtype, shard)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        config._attn_implementation = "eager"  # the other implementations have no softcap
        model = kind(config).double().eval()
        with torch.no_grad():
            for at, p in model.named_parameters():
                if p.dim() == 1: # norms and biases
                    p += 0.2 * torch.randn_like(p)
                else:
                    p.copy_(torch.randn_like(p) / 12)
                p.copy_(p.to(dtype).double())
            ids = torch.randint(0, 96, (1, 21))
        logits = model(ids).logits[0]
        gradients = {}
        if name in GRADIENTS:
            torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).backward()
            gradients = {at: p.grad.float() for at, p in model.named_parameters()}
        logits = logits.detach().float()
        folder = HERE / name
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        (folder / "generation_config.json").unlink(missing_ok=True)
        save_file({"ids": ids[0].int(), "logits": logits}, folder / "expected.safetensors")
        if gradients:
            save_file({"ids": ids[0].int(), **gradients}, folder / "gradients.safetensors")
        print(name, *sorted(f"{f.name} {f.stat().st_size}" for f in folder.iterdir()))


if __name__ == "__main__":
    main()
