#!/usr/bin/env python3
"""Prints the sizes of a model of Hugging Face as the header that llama.c is compiled with (-include sizes.h).

    examples/llama/sizes.py FOLDER >sizes.h          FOLDER: has the model's config.json

models.h says what each number means. llama.c itself compares the other keys of config.json with its lists.
"""
import json
import pathlib
import sys


def number(x):
    """A C literal of the nearest float."""
    return repr(float(x)) + "f"


def rope_of(config):
    """The keys of the rotary positions, which transformers 5 keeps in rope_parameters and 4 in two places."""
    return {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {}),
            **(config.get("rope_parameters") or {})}


def sizes(config):
    """(name of the macro, its numbers) of each macro."""
    kind = config.get("model_type")
    if kind == "gpt2":
        hidden = config["n_embd"]
        return [("GPT2", (hidden, config.get("n_inner") or 4 * hidden, config["vocab_size"], config["n_head"],
                          config["n_positions"]))]
    if kind not in ("llama", "qwen2", "qwen3", "gemma2"):
        sys.exit(f"sizes.py: model_type is {kind}; llama.c computes llama, qwen2, qwen3, gemma2 and gpt2, and "
                 "examples/generate has more families")
    hidden, heads, rope = config["hidden_size"], config["num_attention_heads"], rope_of(config)
    common = (hidden, config["intermediate_size"], config["vocab_size"], heads,
              config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads)
    if kind == "gemma2":
        return [("GEMMA2", common + (number(config["query_pre_attn_scalar"] ** -0.5), number(hidden**0.5),
                                     config["sliding_window"]))]
    common += (number(rope["rope_theta"]),)
    if kind != "llama":
        return [(kind.upper(), common)]
    eps = [("LLAMA_EPS", number(config.get("rms_norm_eps", 1e-6)))]
    if rope.get("rope_type", rope.get("type", "default")) != "llama3":
        return [("LLAMA", common)] + eps
    return [("LLAMA31", common + (number(rope["factor"]), number(rope["low_freq_factor"]), number(rope["high_freq_factor"]),
                                  rope["original_max_position_embeddings"]))] + eps


def main(arguments):
    if len(arguments) != 1:
        sys.exit("usage: sizes.py FOLDER >sizes.h")
    path = pathlib.Path(arguments[0]) / "config.json"
    try:
        defines = sizes(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        sys.exit(f"sizes.py: {path}: {error}")
    except KeyError as error:
        sys.exit(f"sizes.py: {path} has no {error.args[0]}")
    print(f"/* sizes.h -- the sizes of {path.parent.resolve().name}, by examples/llama/sizes.py. */")
    for name, value in defines:
        print(f"#define {name} {value if isinstance(value, str) else '(' + ', '.join(map(str, value)) + ')'}")


if __name__ == "__main__":
    main(sys.argv[1:])
