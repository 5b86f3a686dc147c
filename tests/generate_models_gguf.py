"""Writes a model of generate_models.py as a GGUF file, in the form that llama.cpp's converter has: other names, the rows of q and k
permuted (architecture llama), 1 added to the weights of norms (Gemma), weights as [out, in] (GPT-2).

    generate_models_gguf.py FOLDER FILE.gguf      FOLDER: what `generate_models.py folder` has written (needs numpy)

The file has no place for query_pre_attn_scalar, so the scale is put into the weights of q (Gemma 2) or of its norm (Gemma 3).
"""
import json
import math
import pathlib
import struct
import sys

import numpy

UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
TYPES = {"F32": 0, "F16": 1, "BF16": 30}
LAYER = {"input_layernorm.weight": "attn_norm.weight", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}
GPT2 = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down"}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "wte": "token_embd",
         "wpe": "position_embd", "ln_f": "output_norm"}


def text(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, x):
    if kind == STRING:
        return text(x)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], x)


def read_weights(folder):
    """{name: (dtype, array in f32)}."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + n + at for at in t["data_offsets"])
            raw = data[begin:end]
            if t["dtype"] == "BF16":
                x = (numpy.frombuffer(raw, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
            else:
                x = numpy.frombuffer(raw, {"F32": numpy.float32, "F16": numpy.float16}[t["dtype"]]).astype(numpy.float32)
            tensors[name] = (t["dtype"], x.reshape(t["shape"]))
    return tensors


def renamed(name, family):
    stem, field = name.rsplit(".", 1)
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{field}"
    layer, rest = name.removeprefix("model.layers.").removeprefix("h.").split(".", 1)
    names = GPT2 if family == "gpt2" else dict(LAYER, **(GEMMA_NORMS if family.startswith("gemma") else NORMS))
    for old, new in names.items():
        if rest == old or rest.rsplit(".", 1)[0] == old:
            return f"blk.{layer}." + (new if rest == old else f"{new}.{field}")
    raise SystemExit(f"no name for {name}")


def changed(name, dtype, x, family, config):
    """A tensor as the file has it. What is changed is stored in f32."""
    if family == "llama" and name.split(".")[-2] in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if "attn_q" in name else "num_key_value_heads"]
        rows = x.shape[0] // heads
        return dtype, x.reshape(heads, 2, rows // 2, -1).swapaxes(1, 2).reshape(x.shape)
    if family == "gpt2" and x.ndim == 2 and name.startswith("blk."):
        return dtype, x.T
    if family.startswith("gemma"):
        scale = math.sqrt(config["head_dim"] / config["query_pre_attn_scalar"])
        if "norm" in name:
            return "F32", (x + 1) * (scale if "attn_q_norm" in name else 1)
        if family == "gemma2" and "attn_q." in name:
            return "F32", x * scale
    return ("F32" if x.ndim == 1 else dtype), x


def stored(dtype, x):
    if dtype == "BF16":  # the numbers are bf16 already
        return (numpy.ascontiguousarray(x, numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    return numpy.ascontiguousarray(x, {"F32": numpy.float32, "F16": numpy.float16}[dtype]).tobytes()


def rope_values(config, family, tensors):
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = given.get("rope_theta", config.get("rope_theta"))
    values = [("rope.freq_base", FLOAT32, float(theta))]
    if "rope_local_base_freq" in config:
        values.append(("rope.freq_base_swa", FLOAT32, config["rope_local_base_freq"]))
    if given.get("rope_type") == "linear":
        values += [("rope.scaling.type", STRING, "linear"), ("rope.scaling.factor", FLOAT32, given["factor"])]
    if given.get("rope_type") == "llama3":
        dim, factors = config["hidden_size"] // config["num_attention_heads"], []
        low, high, original = (given[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
        for i in range(dim // 2):
            turns = original / (2 * math.pi * theta ** (2 * i / dim))
            smooth = min(1, max(0, (turns - low) / (high - low)))
            factors.append(1 / ((1 - smooth) / given["factor"] + smooth))
        tensors["rope_freqs.weight"] = ("F32", numpy.array(factors, numpy.float32))
        values.append(("rope.scaling.original_context_length", UINT32, original))
    return values


def sizes(config, family):
    gpt2 = family == "gpt2"
    get = lambda a, b: config[b if gpt2 else a]
    values = [("block_count", UINT32, get("num_hidden_layers", "n_layer")), ("embedding_length", UINT32, get("hidden_size", "n_embd")),
              ("attention.head_count", UINT32, get("num_attention_heads", "n_head")),
              ("context_length", UINT32, get("max_position_embeddings", "n_positions")),
              ("feed_forward_length", UINT32, 4 * config["n_embd"] if gpt2 else config["intermediate_size"])]
    if gpt2:
        return values + [("attention.layer_norm_epsilon", FLOAT32, config["layer_norm_epsilon"])]
    values += [("attention.head_count_kv", UINT32, config["num_key_value_heads"]), ("vocab_size", UINT32, config["vocab_size"]),
               ("attention.layer_norm_rms_epsilon", FLOAT32, config["rms_norm_eps"])]
    if config.get("head_dim"):
        values += [("attention.key_length", UINT32, config["head_dim"]), ("attention.value_length", UINT32, config["head_dim"])]
    if family.startswith("gemma"):
        values.append(("attention.sliding_window", UINT32, config["sliding_window"]))
    for key, name in (("attn_logit_softcapping", "attn_logit_softcapping"), ("final_logit_softcapping", "final_logit_softcapping")):
        if config.get(key):
            values.append((name, FLOAT32, config[key]))
    if "sliding_window_pattern" in config:
        values.append(("attention.sliding_window_pattern", UINT32, config["sliding_window_pattern"]))
    return values


def tokenizer_values(folder, eos):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [6 if t.startswith("<0x") else 2 if t == "<unk>" else 1 for t in tokens] + [3] * len(added)
    tokens += [t["content"] for t in added]
    is_bytes = not model["byte_fallback"]
    values = [("model", STRING, "gpt2" if is_bytes else "llama"), ("pre", STRING, "gpt-2" if is_bytes else "default"),
              ("tokens", STRING, tokens), ("token_type", INT32, types), ("add_bos_token", BOOL, True),
              ("add_space_prefix", BOOL, False), ("bos_token_id", UINT32, added[0]["id"]), ("eos_token_id", UINT32, eos[0])]
    if len(eos) > 1:
        values.append(("eot_token_id", UINT32, eos[1]))
    if is_bytes:
        return values + [("merges", STRING, model["merges"])]
    ranks = {m.replace(" ", ""): rank for rank, m in enumerate(model["merges"])}
    return values + [("scores", FLOAT32, [-float(ranks.get(t, 1000)) for t in tokens]), ("unknown_token_id", UINT32, 0)]


def main(folder, target):
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    generation = folder / "generation_config.json"
    eos = json.loads(generation.read_text())["eos_token_id"] if generation.exists() else [config["eos_token_id"]]
    family = {"gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    tensors = {}
    for name, (dtype, x) in read_weights(folder).items():
        new = renamed(name, family)
        tensors[new] = changed(new, dtype, x, family, config)
    values = [("general.architecture", STRING, family)] + [(f"{family}.{k}", kind, v) for k, kind, v in sizes(config, family)]
    if family != "gpt2":
        values += [(f"{family}.{k}", kind, v) for k, kind, v in rope_values(config, family, tensors)]
    values += [(f"tokenizer.ggml.{k}", kind, v) for k, kind, v in tokenizer_values(folder, eos)]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, kind, v in values:
        if isinstance(v, list):
            header += text(key) + struct.pack("<IIQ", ARRAY, kind, len(v)) + b"".join(value(kind, x) for x in v)
        else:
            header += text(key) + struct.pack("<I", kind) + value(kind, v)
    data = b""
    for name, (dtype, x) in tensors.items():
        header += text(name) + struct.pack("<I", x.ndim) + struct.pack(f"<{x.ndim}Q", *x.shape[::-1])
        header += struct.pack("<IQ", TYPES[dtype], len(data))
        data += stored(dtype, x)
        data += b"\0" * (-len(data) % 32)
    pathlib.Path(target).write_bytes(header + b"\0" * (-len(header) % 32) + data)


if __name__ == "__main__":
    main(*sys.argv[1:])
