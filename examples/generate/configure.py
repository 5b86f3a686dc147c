#!/usr/bin/env python3
"""Writes the sizes of a model as the header that generate_model.c or, for a BERT, embed_model.c is compiled with.

    examples/generate/configure.py FOLDER >model.h          a model of Hugging Face: its config.json is read
    examples/generate/configure.py FILE.gguf >model.h       a model of llama.cpp: the file's metadata are read

A model that families.h cannot compute exactly is refused: the message names the key of config.json or of the metadata,
and its value. Python's standard library is enough.
"""
import json
import math
import pathlib
import struct
import sys

import gguf_config
from gguf_config import Unsupported

# Keys that config.json may leave out, with the values that transformers then assumes.
LLAMA = dict(hidden_act="silu", rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=2048,
             tie_word_embeddings=False)
GEMMA = dict(hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, tie_word_embeddings=True, num_attention_heads=8,
             num_key_value_heads=4, head_dim=256, query_pre_attn_scalar=256, sliding_window=4096)
DEEPSEEK = dict(LLAMA, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
FAMILIES = {
    "llama": LLAMA,
    "mistral": dict(LLAMA, num_key_value_heads=8, sliding_window=4096, max_position_embeddings=131072),
    "mixtral": dict(LLAMA, rms_norm_eps=1e-5, rope_theta=1e6, num_key_value_heads=8, max_position_embeddings=131072,
                    num_local_experts=8, num_experts_per_tok=2),
    "phi3": dict(LLAMA, rms_norm_eps=1e-5, max_position_embeddings=4096),
    "olmo2": dict(LLAMA, rms_norm_eps=1e-5),
    "smollm3": dict(LLAMA, rope_theta=2e6, max_position_embeddings=32768, tie_word_embeddings=True,
                    no_rope_layer_interval=4),
    "qwen2": dict(LLAMA, max_position_embeddings=32768, max_window_layers=28),
    "qwen3": dict(LLAMA, max_position_embeddings=32768, max_window_layers=28, head_dim=128),
    "qwen3_moe": dict(LLAMA, max_position_embeddings=32768, num_key_value_heads=4, num_experts=128,
                      num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=False),
    "deepseek_v2": dict(DEEPSEEK, first_k_dense_replace=0, kv_lora_rank=512, q_lora_rank=1536, n_routed_experts=64,
                        n_shared_experts=2, routed_scaling_factor=1.0, topk_method="greedy", norm_topk_prob=False,
                        moe_intermediate_size=1407),
    "deepseek_v3": dict(DEEPSEEK, max_position_embeddings=4096, first_k_dense_replace=3, kv_lora_rank=512,
                        q_lora_rank=1536, n_routed_experts=256, n_shared_experts=1, routed_scaling_factor=2.5,
                        n_group=8, topk_group=4, num_experts_per_tok=8, norm_topk_prob=True,
                        moe_intermediate_size=2048, rope_interleave=True),
    "gpt_oss": dict(LLAMA, rms_norm_eps=1e-5, rope_theta=150000.0, num_key_value_heads=8, head_dim=64,
                    num_local_experts=128, num_experts_per_tok=4, sliding_window=128, max_position_embeddings=131072,
                    swiglu_alpha=1.702, swiglu_limit=7.0,
                    rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                      original_max_position_embeddings=4096)),
    "llama4": dict(LLAMA, rms_norm_eps=1e-5, rope_theta=5e5, vocab_size=202048, num_key_value_heads=8, head_dim=128,
                   num_local_experts=16, num_experts_per_tok=1, max_position_embeddings=131072,
                   interleave_moe_layer_step=1, use_qk_norm=True, no_rope_layer_interval=4, attention_chunk_size=8192,
                   attn_temperature_tuning=True, floor_scale=8192),
    "gemma2": dict(GEMMA, vocab_size=256000, max_position_embeddings=8192, rope_theta=1e4, attn_logit_softcapping=50.0,
                   final_logit_softcapping=30.0),
    "gemma3": dict(GEMMA, vocab_size=262208, max_position_embeddings=131072, rope_theta=1e6, rope_local_base_freq=1e4),
    "gpt2": dict(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, layer_norm_epsilon=1e-5,
                 activation_function="gelu_new", tie_word_embeddings=True, scale_attn_weights=True),
    "gpt_neox": dict(vocab_size=50432, hidden_size=6144, num_hidden_layers=44, num_attention_heads=64,
                     intermediate_size=24576, hidden_act="gelu", rope_theta=1e4, partial_rotary_factor=0.25,
                     max_position_embeddings=2048, layer_norm_eps=1e-5, use_parallel_residual=True,
                     tie_word_embeddings=False),
    "bert": dict(vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
                 intermediate_size=3072, hidden_act="gelu", max_position_embeddings=512, type_vocab_size=2,
                 layer_norm_eps=1e-12),
}
# Of these keys null has a meaning; all others are then missing.
NULLS = ("head_dim", "num_key_value_heads", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping",
         "n_inner", "q_lora_rank")
# What the lists compute. A key with another value is refused; a missing key, or null, is accepted.
ONLY = dict(attention_bias=False, mlp_bias=False, partial_rotary_factor=1, scale_attn_weights=True,
            scale_attn_by_inverse_layer_idx=False, add_cross_attention=False, use_bidirectional_attention=False,
            hidden_act="silu", hidden_activation="gelu_pytorch_tanh", activation_function="gelu_new")
# Of some families it is something else; None: any value, which the definitions below are made of.
ONLY_OF = {
    "gemma2": dict(hidden_act=None),
    "gemma3": dict(hidden_act=None),
    "phi3": dict(partial_rotary_factor=None),
    "smollm3": dict(use_sliding_window=False),
    "qwen3_moe": dict(decoder_sparse_step=1, mlp_only_layers=[]),
    "deepseek_v2": dict(topk_method="greedy", norm_topk_prob=False, moe_layer_freq=1, scoring_func="softmax"),
    "deepseek_v3": dict(topk_method="noaux_tc", moe_layer_freq=1, scoring_func="sigmoid"),
    "gpt_oss": dict(attention_bias=True),
    "llama4": dict(interleave_moe_layer_step=1),
    "gpt_neox": dict(hidden_act=None, partial_rotary_factor=None, attention_bias=True),
    "bert": dict(hidden_act="gelu", position_embedding_type="absolute", is_decoder=False),
}
# The keys that GPT-NeoX has its own names for.
NEOX_KEYS = dict(rotary_emb_base="rope_theta", rotary_pct="partial_rotary_factor")
# Its activations, as lists have them.
ACTIVATIONS = dict(gelu="gelu_erf", gelu_new="gelu", gelu_fast="gelu", gelu_pytorch_tanh="gelu")
# The families with experts, and the key for the inner size of an expert.
EXPERTS = dict(mixtral="intermediate_size", qwen3_moe="moe_intermediate_size", deepseek_v2="moe_intermediate_size",
               deepseek_v3="moe_intermediate_size", gpt_oss="intermediate_size", llama4="intermediate_size")
# The keys for the number of experts; which one a file has depends on the version of transformers.
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
# The families with latent attention.
LATENT = ("deepseek_v2", "deepseek_v3")
# Keys of models that these families are not; experts are only refused in the other families.
REFUSED = ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank")
# Weights in 4 bits: what quantization_config may say, by its quant_method; a missing key, or null, is accepted.
QUANTIZED = {
    "gptq": dict(bits=(4,), checkpoint_format=("gptq", "gptq_v2"), format=("gptq", "gptq_v2"), pack_dtype=("int32",),
                 is_marlin_format=(False,)),
    "awq": dict(bits=(4,), version=("gemm", "GEMM"), format=("gemm",), pack_dtype=("int32",), zero_point=(True,)),
}
# The families whose tensors are not one matrix [out, in] for each weight.
NOT_QUANTIZED = ("gpt2", "gpt_neox", "bert", *EXPERTS)


def number(x):
    """A C literal of the nearest float."""
    return repr(float(x)) + "f"


def bf16(x):
    """The nearest number of bf16, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


def checksum(data):
    """FNV-1a in 64 bits; generate_model.c computes it again of the config.json, or the header of the GGUF file, that it
    finds."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def family_of(config):
    """(name of the family, config with the defaults filled in)."""
    kind = str(config.get("model_type"))
    if kind in ("gemma3", "llama4") and "text_config" in config:  # with a vision tower, which is left out
        config = dict(config["text_config"], **{k: v for k, v in config.items() if k != "text_config"})
    name = kind.removesuffix("_text")
    if name not in FAMILIES:
        raise Unsupported(f"model_type is {kind}; supported are {', '.join(FAMILIES)}")
    if name == "gpt_neox":
        config = {NEOX_KEYS.get(k, k): v for k, v in config.items()}
    is_given = lambda key, value: value is not None or key in NULLS
    config = {k: v for k, v in config.items() if is_given(k, v)}
    if name in EXPERTS:  # either key may have the number of experts
        counts = {key: config.pop(key) for key in EXPERT_COUNTS if key in config}
        if len(set(counts.values())) > 1:
            raise Unsupported(f"the numbers of experts differ: {counts}")
        config.update(dict.fromkeys(EXPERT_COUNTS, next(iter(counts.values()))) if counts else {})
    config = dict(FAMILIES[name], **config)
    if name == "gpt_oss" and config.get("quantization_config", {}).get("quant_method") == "mxfp4":
        del config["quantization_config"]
        config["experts_in_mxfp4"] = True
    for key in REFUSED:
        if config.get(key) and not (name in EXPERTS and key in EXPERT_COUNTS) and not (name in LATENT and key == "kv_lora_rank"):
            raise Unsupported(f"{key} is {str(config[key])[:60]}; no family here has it")
    for key, value in dict(ONLY, **ONLY_OF.get(name, {})).items():
        if config.get(key) is not None and value is not None and config[key] != value:
            raise Unsupported(f"{key} is {config[key]}; only {value} is supported")
    return name, config


def quantization(name, config):
    """The definitions for weights in few bits. te/io/quantized_file.h checks the tensors."""
    given = config.get("quantization_config")
    if not given:
        return {"MODEL_QUANTIZED": 0, "MODEL_GPTQ_V2": 0}
    method = given.get("quant_method")
    where = f"quantization_config of {method}"
    if method not in QUANTIZED:
        raise Unsupported(f"quantization_config.quant_method is {method}; supported are "
                          f"{', '.join(QUANTIZED)} and, of gpt_oss, mxfp4")
    if name in NOT_QUANTIZED:
        raise Unsupported(f"{where}: model_type is {name}, which is read in floats only")
    for key, values in QUANTIZED[method].items():
        if given.get(key) is not None and given[key] not in values:
            raise Unsupported(f"{where}: {key} is {given[key]}; supported: {', '.join(map(str, values))}")
    size = given.get("group_size", 128)
    if size != -1 and (size <= 0 or size % 32):
        raise Unsupported(f"{where}: group_size is {size}; supported are -1 and multiples of 32")
    if given.get("desc_act") and not given.get("static_groups"):
        raise Unsupported(f"{where}: desc_act is True: weights of a group are not adjacent, which is not supported")
    is_v2 = "gptq_v2" in (given.get("checkpoint_format"), given.get("format"))
    return {"MODEL_QUANTIZED": 1, "MODEL_GPTQ_V2": int(is_v2)}


KINDS = ("full", "sliding", "unrotated", "dense")


def layer_kinds(name, config, layers):
    """The kind of each layer: whether its attention has the sliding window, or no rope."""
    if name in ("smollm3", "llama4"):
        interval = config["no_rope_layer_interval"]
        rotated = config.get("no_rope_layers") or [(i + 1) % interval for i in range(layers)]  # 0: not, as in transformers
        if len(rotated) < layers:
            raise Unsupported(f"no_rope_layers has {len(rotated)} entries for {layers} layers")
        return ["full" if r else "unrotated" for r in rotated[:layers]]
    if name in LATENT:
        return ["dense" if i < config["first_k_dense_replace"] else "full" for i in range(layers)]
    window = config.get("sliding_window")
    if not window or name in ("llama", "olmo2", "gpt2", "gpt_neox"):
        return ["full"] * layers
    if "layer_types" in config:
        types = config["layer_types"]
        for t in types:
            if t not in ("full_attention", "sliding_attention"):
                raise Unsupported(f"layer_types has {t}; only full_attention and sliding_attention are supported")
        if len(types) != layers:
            raise Unsupported(f"layer_types has {len(types)} entries for {layers} layers")
        return [t.removesuffix("_attention") for t in types]
    if name in ("mistral", "mixtral", "phi3"):
        return ["sliding"] * layers
    if name == "qwen3_moe":
        return ["sliding" if config.get("use_sliding_window") else "full"] * layers
    if name in ("gemma2", "gpt_oss"):
        sliding = [i % 2 == 0 for i in range(layers)]
    elif name == "gemma3":
        pattern = config.get("sliding_window_pattern", 6)
        sliding = [(i + 1) % pattern != 0 for i in range(layers)]
    else:
        sliding = [bool(config.get("use_sliding_window")) and i >= config["max_window_layers"] for i in range(layers)]
    return ["sliding" if s else "full" for s in sliding]


def positions_of(name, config):
    """The largest number of tokens of a sequence."""
    positions = config["n_positions" if name == "gpt2" else "max_position_embeddings"]
    if name != "llama4":
        return positions
    # Layers with rope see chunks of attention_chunk_size tokens, that is, all earlier tokens of the first chunk. The
    # others multiply q by 1 + attn_scale log(1 + floor((position + 1) / floor_scale)), by 1 in the first floor_scale - 1
    # positions. In this range no layer needs more than causal attention.
    chunk = config.get("attention_chunk_size") or positions
    return min(positions, chunk, config["floor_scale"] - 1 if config["attn_temperature_tuning"] else positions)


PARTLY_ROTATED = ("phi3", "gpt_neox")


def yarn_scale(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def yarn_attention_factor(scaling):
    """The factor of the rotated q and k, as transformers computes it."""
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"]
    factor, mscale, of_all = scaling["factor"], scaling.get("mscale"), scaling.get("mscale_all_dim")
    return yarn_scale(factor, mscale) / yarn_scale(factor, of_all) if mscale and of_all else yarn_scale(factor, 1)


def rope(name, config, head_dim, kind):
    """The options of `rope` in layers of this kind, full or sliding."""
    given = config.get("rope_parameters") or {}
    per_layer = given.get("full_attention") or given.get("sliding_attention")
    local = kind == "sliding" and "rope_local_base_freq" in config and not given
    if per_layer:
        given = given.get(f"{kind}_attention") or {}
    scaling = given or ({} if local else config.get("rope_scaling") or {})
    theta = scaling.get("rope_theta", config["rope_local_base_freq" if local else "rope_theta"])
    part = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    if part != 1 and name not in PARTLY_ROTATED:
        raise Unsupported(f"partial_rotary_factor is {part}; only 1 is supported")
    scaling_type = scaling.get("rope_type", scaling.get("type", "default"))
    options = [("base", number(theta))]
    if part != 1:
        options += [("rotary_dim", int(head_dim * part))]
    if scaling_type == "linear":
        options += [("scaling", "linear"), ("factor", number(scaling["factor"]))]
    elif scaling_type == "llama3":
        options += [("scaling", "llama3"), ("factor", number(scaling["factor"])),
                    ("low_freq_factor", number(scaling["low_freq_factor"])),
                    ("high_freq_factor", number(scaling["high_freq_factor"])),
                    ("original_length", scaling["original_max_position_embeddings"])]
    elif scaling_type == "yarn":
        original = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
        options += [("scaling", "yarn"), ("factor", number(scaling["factor"])),
                    ("original_length", original),
                    ("attention_factor", number(yarn_attention_factor(scaling)))]
        for key, default in (("beta_fast", 32), ("beta_slow", 1)):  # an op takes few options
            if (scaling.get(key) or default) != default:
                options += [(key, number(scaling[key]))]
        if not scaling.get("truncate", True):
            options += [("truncate", 0)]
    elif scaling_type != "default":
        raise Unsupported(f"the rope type is {scaling_type}; supported are default, linear, llama3 and yarn")
    return ", ".join(f"({option}, {value})" for option, value in options)


def ids_of(value):
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def read_if_there(path):
    return json.loads(path.read_bytes()) if path.exists() else None


def pooling(folder):
    """(whether the mean of all tokens is taken, else the first one's vector; whether it is normalized to length 1; the
    tokens of a text at most, or None), as the package sentence-transformers reads them from its own files."""
    mean, normalize = True, True
    modules = read_if_there(folder / "modules.json")
    for module in modules or []:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise Unsupported(f"modules.json has the module {kind}; only Transformer, Pooling and Normalize are "
                              "supported")
    if modules is not None:
        normalize = any(module["type"].endswith("Normalize") for module in modules)
    config = read_if_there(folder / "1_Pooling" / "config.json")
    if config is not None:
        modes = {k.removeprefix("pooling_mode_") for k, v in config.items() if k.startswith("pooling_mode_") and v}
        modes |= {config["pooling_mode"]} if "pooling_mode" in config else set()
        if modes not in ({"mean_tokens"}, {"mean"}, {"cls_token"}, {"cls"}):
            raise Unsupported(f"the pooling is {' and '.join(sorted(modes))}; supported are mean and cls")
        mean = "mean" in "".join(modes)
    longest = (read_if_there(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    return mean, normalize, longest


def bert(folder, text, config):
    """The definitions for embed_model.c."""
    mean, normalize, longest = pooling(folder)
    positions = config["max_position_embeddings"]
    return {
        "MODEL_CHECKSUM": f"{checksum(text):#x}u /* of config.json */",
        "MODEL_LAYERS": config["num_hidden_layers"],
        "MODEL_HIDDEN": config["hidden_size"],
        "MODEL_FFN": config["intermediate_size"],
        "MODEL_VOCABULARY": config["vocab_size"],
        "MODEL_HEADS": config["num_attention_heads"],
        "MODEL_POSITIONS": positions,
        "MODEL_TOKEN_TYPES": config["type_vocab_size"],
        "MODEL_EPS": number(config["layer_norm_eps"]),
        "MODEL_LONGEST": f"{min(longest or positions, positions)} /* tokens of a text at most */",
        "MODEL_POOLING_MEAN": f"{int(mean)} /* 0: the first token's vector */",
        "MODEL_NORMALIZE": f"{int(normalize)} /* to length 1 */",
    }


EPS = dict(gpt2="layer_norm_epsilon", gpt_neox="layer_norm_eps")


def model(path):
    """The definitions of the header, name and value."""
    is_gguf = path.is_file()
    if is_gguf:
        file = gguf_config.read(path)
        text, config = file.header, gguf_config.config(file)
    else:
        text = (path / "config.json").read_bytes()
        config = json.loads(text)
    name, config = family_of(config)
    if name == "bert":
        quantization(name, config)
        return bert(path, text, config)
    generation = path / "generation_config.json"
    eos = ids_of(json.loads(generation.read_bytes()).get("eos_token_id")) if generation.exists() else []
    eos = eos or ids_of(config.get("eos_token_id"))
    gpt2 = name == "gpt2"
    hidden, layers, heads = (config[key] for key in (
        ("n_embd", "n_layer", "n_head") if gpt2 else ("hidden_size", "num_hidden_layers", "num_attention_heads")))
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = heads if gpt2 else config.get("num_key_value_heads") or heads
    ffn = (config.get("n_inner") or 4 * hidden) if gpt2 else config[EXPERTS.get(name, "intermediate_size")]
    kinds = layer_kinds(name, config, layers)
    scalar = config["query_pre_attn_scalar"] if name.startswith("gemma") else head_dim
    attention_scale = scalar**-0.5
    if name in LATENT:
        head_dim, kv_heads = config["qk_nope_head_dim"] + config["qk_rope_head_dim"], heads
        attention_scale = head_dim**-0.5
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if scaling.get("rope_type", scaling.get("type", "default")) != "default" and scaling.get("mscale_all_dim"):
            attention_scale *= yarn_scale(scaling["factor"], scaling["mscale_all_dim"]) ** 2
    defines = {
        "MODEL_FAMILY": name.upper(),
        "MODEL_TYPE": f'"{name}"',
        "MODEL_GGUF": int(is_gguf),
        **quantization(name, config),
        "MODEL_CHECKSUM": f"{checksum(text):#x}u /* of {'the header' if is_gguf else 'config.json'} */",
        "MODEL_LAYERS": layers,
        "MODEL_HIDDEN": hidden,
        "MODEL_FFN": ffn,
        "MODEL_VOCABULARY": config["vocab_size"],
        "MODEL_HEADS": heads,
        "MODEL_KV_HEADS": kv_heads,
        "MODEL_HEAD_DIM": head_dim,
        "MODEL_POSITIONS": positions_of(name, config),
        "MODEL_EPS": number(config[EPS.get(name, "rms_norm_eps")]),
        "MODEL_TIED": int(bool(config["tie_word_embeddings"])),
        "MODEL_ATTENTION_SCALE": number(attention_scale),
        "MODEL_ATTENTION_SOFTCAP": number(config.get("attn_logit_softcapping") or 0),
        "MODEL_EOS": ", ".join(map(str, eos)) or "-1",
        "MODEL_KINDS": ", ".join(str(KINDS.index(k)) for k in kinds) + " /* by layer; 0: full, 1: sliding, 2: unrotated, 3: dense */",
        **{f"MODEL_HAS_{kind}": int(kind in kinds) for kind in KINDS},
        **{f"MODEL_LEFT_{kind}": -1 for kind in KINDS},
    }
    if "sliding" in kinds:
        defines["MODEL_LEFT_sliding"] = config["sliding_window"] - 1
    if name in EXPERTS:
        count = next(config[key] for key in EXPERT_COUNTS if key in config)
        defines["MODEL_EXPERTS"] = count
        defines["MODEL_TOP_K"] = config["num_experts_per_tok"]
        defines["MODEL_RENORMALISE"] = int(config.get("norm_topk_prob", True))
        if not 1 <= config["num_experts_per_tok"] <= min(count, 32):
            raise Unsupported(f"num_experts_per_tok is {config['num_experts_per_tok']} of {count} experts; supported are "
                              "1 to 32, and at most the number of experts")
        if name in LATENT:
            defines.update(latent(name, config))
        if ffn % 8 or hidden % 8:
            raise Unsupported(f"{EXPERTS[name]} is {ffn} and hidden_size {hidden}; experts need multiples of eight")
    if name in ("gpt_oss", "llama4"):
        defines["MODEL_EXPERTS_IN_ONE"] = "1 /* tensor of the files for all experts */"
    if name == "llama4":
        if config.get("moe_layers", list(range(layers))) != list(range(layers)):
            raise Unsupported(f"moe_layers is {config['moe_layers']}; only experts in all layers are supported")
        for t in config.get("layer_types") or []:
            if t not in ("chunked_attention", "full_attention"):
                raise Unsupported(f"layer_types has {t}; only chunked_attention and full_attention are supported")
        defines["MODEL_QK_NORM"] = int(config["use_qk_norm"])
    if name == "gpt_oss":
        defines["MODEL_MXFP4_EXPERTS"] = int(config.get("experts_in_mxfp4", False))
        defines["MODEL_SWIGLU_ALPHA"] = number(config["swiglu_alpha"])
        defines["MODEL_SWIGLU_LIMIT"] = number(config["swiglu_limit"])
    if name == "gpt_neox":
        if config["hidden_act"] not in ACTIVATIONS:
            raise Unsupported(f"hidden_act is {config['hidden_act']}; supported are {', '.join(ACTIVATIONS)}")
        defines["MODEL_ACT"] = ACTIVATIONS[config["hidden_act"]]
        defines["MODEL_PARALLEL"] = int(config["use_parallel_residual"])
    if config.get("final_logit_softcapping"):
        defines["MODEL_LOGIT_SOFTCAP"] = number(config["final_logit_softcapping"])
    if name.startswith("gemma"):
        scale = hidden**0.5  # which transformers rounds to the dtype of the weights
        defines["MODEL_EMBEDDING_SCALE_f32"] = number(scale)
        defines["MODEL_EMBEDDING_SCALE_bf16"] = number(bf16(scale))
        defines["MODEL_EMBEDDING_SCALE_f16"] = number(struct.unpack("<e", struct.pack("<e", scale))[0])
    if not gpt2:
        for kind in ("full", "sliding"):
            # The rotated columns of Llama 4 and DeepSeek are pairs of neighbours. For such pairs, llama.cpp has permuted
            # the rows of q and k of the architecture llama.
            is_interleaved = (is_gguf and name == "llama") or name == "llama4" or (
                name in LATENT and config.get("rope_interleave", True))
            interleaved = ", (interleaved, 1)" if is_interleaved else ""
            defines[f"MODEL_ROPE_{kind}"] = rope(name, config, head_dim, kind) + interleaved
    return defines


def latent(name, config):
    """The definitions of a model with latent attention, and with shared experts."""
    sizes = {"MODEL_LATENT": "kv_lora_rank", "MODEL_UNROTATED_DIM": "qk_nope_head_dim",
             "MODEL_ROTARY_DIM": "qk_rope_head_dim", "MODEL_VALUE_DIM": "v_head_dim"}
    for key in sizes.values():
        if config[key] % 8:
            raise Unsupported(f"{key} is {config[key]}; only multiples of eight are supported")
    factor = ("factor", number(config["routed_scaling_factor"]))
    router = [factor] if name == "deepseek_v2" else [
        ("score", "sigmoid"), ("choice_bias", 1), ("groups", config["n_group"]), ("groups_kept", config["topk_group"]),
        factor]
    return {
        **{define: config[key] for define, key in sizes.items()},
        "MODEL_Q_LORA": f"{config['q_lora_rank'] or 0} /* 0: q is not compressed */",
        "MODEL_DENSE_FFN": config["intermediate_size"],
        "MODEL_SHARED_FFN": config["moe_intermediate_size"] * config["n_shared_experts"],
        "MODEL_ROUTER": ", ".join(f"({option}, {value})" for option, value in router),
    }


def main(arguments):
    if len(arguments) != 1:
        sys.exit("usage: configure.py FOLDER|FILE.gguf >model.h      FOLDER: has the model's config.json")
    path = pathlib.Path(arguments[0])
    try:
        defines = model(path)
    except (Unsupported, OSError, ValueError) as error:
        sys.exit(f"configure.py: {path}: {error}")
    except KeyError as error:
        sys.exit(f"configure.py: {path}: {'the file' if path.is_file() else 'config.json'} has no {error.args[0]}")
    print(f"/* model.h -- the sizes of {path.resolve().name}, by examples/generate/configure.py. */")
    for name, value in defines.items():
        print(f"#define {name} {value}")


if __name__ == "__main__":
    main(sys.argv[1:])
