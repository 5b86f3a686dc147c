"""Small random models of each family of examples/generate/families.h, and the tokens that transformers generates with
them, for tests/generate_models.sh.

    generate_models.py folder NAME FOLDER    writes a model: config.json, weights, tokenizer.json (needs numpy)
    generate_models.py vision NAME FOLDER    the same as the text model of one with images: other keys, other names
    generate_models.py names                 names of the models
    generate_models.py prompts               the prompts, a line each
    generate_models.py expected NAME         tokens of each prompt, a line each, from generate_models.json
    generate_models.py near NAME <TOKENS     whether tokens of a model in 4 bits differ from these only where two tokens are
                                             almost equally likely, because of activations in 8 bits, and behind
    generate_models.py check                 whether transformers computes the tokens of generate_models.json now, and
                                             configure.py reads the config.json that transformers writes
    generate_models.py make [NAME...]        writes generate_models.json, or these models of it

Weights are random numbers of numpy's RandomState, whose stream never changes, so that no weights need to be stored.
The config.json files are written as they are published, in older and in newer forms. Greedy decoding of a random model
could hang on a tie: `make` refuses a model whose two likeliest tokens are ever closer than MARGIN of the logits'
deviation.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "generate_models.json"
PROMPTS = ["The quick brown fox jumps over the lazy dog, and then the dog takes a nap.", "Hi", "them or the others"]
TOKENS, MARGIN, MIN_DISTINCT = 64, 1e-3, 16
NEAR = 0.1  # of the logits' deviation: the largest margin of tokens that activations in 8 bits may interchange

SIZES = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=160)
LLAMA3_ROPE = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16,
                   rope_type="llama3")
GEMMA = dict(SIZES, head_dim=32, hidden_activation="gelu_pytorch_tanh", hidden_act="gelu_pytorch_tanh",
             rms_norm_eps=1e-6, sliding_window=16, attention_bias=False)
NEOX = dict(SIZES, model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"], layer_norm_eps=1e-5,
            rotary_emb_base=10000, torch_dtype="float16", tie_word_embeddings=False, rope_scaling=None)
del NEOX["num_key_value_heads"]
DEEPSEEK = dict(SIZES, num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24,
                moe_intermediate_size=24, moe_layer_freq=1, first_k_dense_replace=1, rms_norm_eps=1e-5, hidden_act="silu",
                attention_bias=False, tie_word_embeddings=False)
GPT_OSS = dict(SIZES, model_type="gpt_oss", architectures=["GptOssForCausalLM"], head_dim=32, rms_norm_eps=1e-5,
               hidden_act="silu", rope_theta=150000, attention_bias=True, sliding_window=12, num_local_experts=5,
               num_experts_per_tok=2, experts_per_token=2, swiglu_limit=2.0, initial_context_length=32,
               rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 5.0, "rope_type": "yarn", "truncate": False,
                             "original_max_position_embeddings": 32}, tie_word_embeddings=False)
LLAMA4 = dict(SIZES, model_type="llama4_text", architectures=["Llama4ForCausalLM"], head_dim=32, rms_norm_eps=1e-5,
              hidden_act="silu", rope_theta=500000.0, rope_scaling=None, attention_bias=False, attention_chunk_size=160,
              floor_scale=161, attn_scale=0.1, attn_temperature_tuning=True, interleave_moe_layer_step=1,
              intermediate_size_mlp=128, num_local_experts=4, num_hidden_layers=3, use_qk_norm=True,
              no_rope_layers=[1, 0, 1], tie_word_embeddings=False)
# name: (config.json, dtype of the files, bytes of a file at most, seed)
MODELS = {
    "llama": (dict(SIZES, model_type="llama", architectures=["LlamaForCausalLM"], rms_norm_eps=1e-5, hidden_act="silu",
                   rope_theta=500.0, rope_scaling=LLAMA3_ROPE, attention_bias=False, mlp_bias=False,
                   head_dim=None, num_key_value_heads=1, tie_word_embeddings=False), "BF16", 60000, 21),
    "llama_tied": (dict(SIZES, model_type="llama", architectures=["LlamaForCausalLM"], rms_norm_eps=1e-6,
                        hidden_act="silu", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
                        tie_word_embeddings=True), "F32", 1 << 30, 2),
    "mistral": (dict(SIZES, model_type="mistral", architectures=["MistralForCausalLM"], rms_norm_eps=1e-5,
                     hidden_act="silu", rope_theta=10000.0, sliding_window=12, num_hidden_layers=3,
                     tie_word_embeddings=False), "F32", 1 << 30, 3),
    "qwen2": (dict(SIZES, model_type="qwen2", architectures=["Qwen2ForCausalLM"], rms_norm_eps=1e-6, hidden_act="silu",
                   rope_theta=1000000.0, use_sliding_window=False, sliding_window=32, max_window_layers=2,
                   tie_word_embeddings=True), "BF16", 1 << 30, 14),
    "qwen3": (dict(SIZES, model_type="qwen3", architectures=["Qwen3ForCausalLM"], rms_norm_eps=1e-6, hidden_act="silu",
                   head_dim=32, rope_theta=1000000, rope_scaling=None, use_sliding_window=False, sliding_window=None,
                   attention_bias=False, tie_word_embeddings=False), "F16", 1 << 30, 15),
    "gemma2": (dict(GEMMA, model_type="gemma2", architectures=["Gemma2ForCausalLM"], num_hidden_layers=4,
                    query_pre_attn_scalar=20, rope_theta=10000.0, attn_logit_softcapping=5.0,
                    final_logit_softcapping=3.0), "BF16", 1 << 30, 26),
    "gemma3": (dict(GEMMA, model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], num_hidden_layers=6,
                    query_pre_attn_scalar=24, rope_theta=1000000.0, rope_local_base_freq=10000.0,
                    rope_scaling={"factor": 8.0, "rope_type": "linear"}, sliding_window_pattern=3),
               "F32", 1 << 30, 257),
    "mixtral": (dict(SIZES, model_type="mixtral", architectures=["MixtralForCausalLM"], rms_norm_eps=1e-5,
                     hidden_act="silu", rope_theta=1000000.0, sliding_window=None, num_local_experts=4,
                     num_experts_per_tok=2, torch_dtype="bfloat16", tie_word_embeddings=False), "BF16", 200000, 1),
    "qwen3_moe": (dict(SIZES, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], rms_norm_eps=1e-6,
                       hidden_act="silu", head_dim=32, rope_theta=1000000.0, rope_scaling=None, num_experts=9,
                       num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True, decoder_sparse_step=1,
                       mlp_only_layers=[], use_sliding_window=False, sliding_window=None, attention_bias=False,
                       tie_word_embeddings=False), "F32", 1 << 30, 1),
    "deepseek_v3": (dict(DEEPSEEK, model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], q_lora_rank=24,
                         n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2,
                         routed_scaling_factor=2.5, norm_topk_prob=True, scoring_func="sigmoid",
                         topk_method="noaux_tc", num_hidden_layers=3, torch_dtype="bfloat16", rope_theta=10000,
                         rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=40, beta_fast=32,
                                           beta_slow=1, mscale=1.0, mscale_all_dim=1.0)), "BF16", 200000, 1),
    "deepseek_v2": (dict(DEEPSEEK, model_type="deepseek_v2", architectures=["DeepseekV2ForCausalLM"], q_lora_rank=None,
                         n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=2, n_group=1, topk_group=1,
                         routed_scaling_factor=1.5, norm_topk_prob=False, scoring_func="softmax",
                         topk_method="greedy", rope_theta=10000, rope_scaling=None), "F32", 1 << 30, 1),
    "gpt_oss": (dict(GPT_OSS, num_hidden_layers=3, layer_types=["sliding_attention", "full_attention",
                                                                "sliding_attention"]), "BF16", 90000, 1),
    "gpt_oss_mxfp4": (dict(GPT_OSS, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}), "BF16", 40000, 5),
    "llama4": (dict(LLAMA4, num_experts_per_tok=1), "BF16", 100000, 1),
    "llama4_top2": (dict(LLAMA4, num_experts_per_tok=2, use_qk_norm=False, rope_scaling=LLAMA3_ROPE), "F32", 1 << 30, 1),
    "phi3": (dict(SIZES, model_type="phi3", architectures=["Phi3ForCausalLM"], rms_norm_eps=1e-5, hidden_act="silu",
                  rope_theta=10000.0, rope_scaling=None, partial_rotary_factor=0.5, sliding_window=20,
                  original_max_position_embeddings=160, attention_bias=False, pad_token_id=0, torch_dtype="bfloat16",
                  tie_word_embeddings=False), "BF16", 1 << 30, 4),
    "olmo2": (dict(SIZES, model_type="olmo2", architectures=["Olmo2ForCausalLM"], rms_norm_eps=1e-6, hidden_act="silu",
                   rope_theta=500000, rope_scaling=None, attention_bias=False, torch_dtype="float32",
                   tie_word_embeddings=False), "F32", 1 << 30, 1),
    "smollm3": (dict(SIZES, model_type="smollm3", architectures=["SmolLM3ForCausalLM"], rms_norm_eps=1e-6,
                     hidden_act="silu", rope_theta=5000000.0, rope_scaling=None, attention_bias=False, mlp_bias=False,
                     num_hidden_layers=3, no_rope_layers=[1, 0, 1], no_rope_layer_interval=4, use_sliding_window=False,
                     sliding_window=None, layer_types=["full_attention"] * 3, pad_token_id=0,
                     torch_dtype="bfloat16"), "BF16", 1 << 30, 9),
    "pythia": (dict(NEOX, rotary_pct=0.25, hidden_act="gelu", use_parallel_residual=True), "F16", 1 << 30, 2),
    "neox": (dict(NEOX, rotary_pct=0.5, hidden_act="gelu_new", use_parallel_residual=False, layer_norm_eps=1e-6),
             "BF16", 60000, 6),
    "gpt2": (dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=320, n_positions=160, n_embd=64,
                  n_layer=2, n_head=4, n_inner=None, activation_function="gelu_new", layer_norm_epsilon=1e-5),
             "F32", 1 << 30, 48),
    # Weights in 4 bits, as GPTQ and AWQ store them; transformers computes with the same weights in floats.
    "gptq": (dict(SIZES, model_type="llama", architectures=["LlamaForCausalLM"], rms_norm_eps=1e-5, hidden_act="silu",
                  rope_theta=10000.0, tie_word_embeddings=False,
                  quantization_config=dict(bits=4, group_size=32, quant_method="gptq", sym=True, desc_act=False,
                                           checkpoint_format="gptq")), "F16", 30000, 1),
    "gptq_v2": (dict(SIZES, model_type="qwen2", architectures=["Qwen2ForCausalLM"], rms_norm_eps=1e-6,
                     hidden_act="silu", hidden_size=128, intermediate_size=256, rope_theta=1000000.0,
                     use_sliding_window=False, sliding_window=32, max_window_layers=2, tie_word_embeddings=True,
                     quantization_config=dict(bits=4, group_size=-1, quant_method="gptq", sym=False, desc_act=False,
                                              checkpoint_format="gptq_v2", pack_dtype="int32")), "F16", 1 << 30, 5),
    "awq": (dict(SIZES, model_type="mistral", architectures=["MistralForCausalLM"], rms_norm_eps=1e-5,
                 hidden_act="silu", intermediate_size=128, rope_theta=10000.0, sliding_window=None,
                 tie_word_embeddings=False,
                 quantization_config=dict(bits=4, group_size=64, quant_method="awq", version="gemm", zero_point=True,
                                          modules_to_not_convert=None)), "F16", 1 << 30, 3),
}

# ---- tokenizers: 256 bytes, or characters with bytes as fallback, and a few merges ---

PIECES = ["th", "the", "er", "in", "an", "and", "og", "re"]


def byte_symbols():
    """The printable characters that byte-level BPE has for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) if b in shown else chr(256 + hidden.index(b)) for b in range(256)}


def merges_of(space):
    return [f"{p[:-1]} {p[-1]}" for p in PIECES] + [f"{space} {p}" for p in ("the", "and")]


def byte_tokenizer(special):
    symbols = byte_symbols()
    vocab = {symbols[b]: b for b in range(256)}
    merges = merges_of("\u0120")
    for m in merges:
        vocab.setdefault(m.replace(" ", ""), len(vocab))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return tokenizer(vocab, merges, special, pre_tokenizer=byte_level, decoder=byte_level)


def text_tokenizer(special):
    space = "\u2581"
    vocab = {t: i for i, t in enumerate(["<unk>", "</s>"])}
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = len(vocab)
    for c in [space, *map(chr, range(97, 123))]:
        vocab[c] = len(vocab)
    merges = merges_of(space)
    for m in merges:
        vocab.setdefault(m.replace(" ", ""), len(vocab))
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": space}
    back = {"type": "Replace", "pattern": {"String": space}, "content": " "}
    decoder = {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return tokenizer(vocab, merges, special, normalizer=normalizer, decoder=decoder, unk_token="<unk>", fuse_unk=True,
                     byte_fallback=True)


def tokenizer(vocab, merges, special, normalizer=None, pre_tokenizer=None, decoder=None, **options):
    """special: tokens behind the vocabulary; the first one begins each text."""
    tokens = [{"id": len(vocab) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True} for i, t in enumerate(special)]
    first = {"SpecialToken": {"id": special[0], "type_id": 0}}
    a, b = ({"Sequence": {"id": x, "type_id": i}} for i, x in enumerate("AB"))
    template = {"type": "TemplateProcessing", "single": [first, a], "pair": [first, a, b],
                "special_tokens": {special[0]: {"id": special[0], "ids": [tokens[0]["id"]], "tokens": [special[0]]}}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": template, "decoder": decoder,
            "model": dict({"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "ignore_merges": False, "vocab": vocab, "merges": merges}, **options)}


def tokenizer_of(name):
    if name.startswith("gemma"):
        return text_tokenizer(["<bos>", "<start_of_turn>", "<end_of_turn>"])
    if name == "mistral":
        return text_tokenizer(["<s>", "[INST]", "[/INST]"])
    return byte_tokenizer(["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])


# ---- folders ---


def weight(random, name, shape, model_type):
    """Norms near their neutral weight; matrices large enough that each token depends on all layers."""
    if name.endswith("_blocks"):  # two numbers of MXFP4 in each byte
        return random.randint(0, 256, shape)
    if name.endswith("_scales"):  # of which 127 stands for 1
        return random.randint(122, 126, shape)
    if len(shape) == 1:
        is_norm = name.endswith("weight")
        return 0.2 * random.standard_normal(shape) + (1 if is_norm and not model_type.startswith("gemma") else 0)
    if "embed_tokens" in name:  # small, because the table is also the head: else each token would repeat itself
        return random.standard_normal(shape) / 32
    return 2.5 / math.sqrt(SIZES["hidden_size"]) * random.standard_normal(shape)


def stored(values, dtype):
    """The bytes of an array in a dtype, rounded to nearest even."""
    import numpy

    if dtype == "U8":
        return values.astype(numpy.uint8).tobytes()
    values = values.astype(numpy.float32)
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(numpy.float16).tobytes()
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16).tobytes()


def four_bits(config):
    """What config.json says of weights of GPTQ or AWQ, else None."""
    how = config.get("quantization_config") or {}
    return how if how.get("quant_method") in ("gptq", "awq") else None


def quantized(values, how):
    """(codes [rows, columns], zero points and scales [rows, groups]) of a matrix in 4 bits, rounded to nearest."""
    import numpy

    rows, columns = values.shape
    group = columns if how["group_size"] == -1 else how["group_size"]
    values = values.reshape(rows, -1, group)
    if how.get("sym"):
        scale = numpy.abs(values).max(2) / 7.5
        zero = numpy.full(scale.shape, 8)
    else:
        low, high = numpy.minimum(values.min(2), 0), numpy.maximum(values.max(2), 0)
        scale = (high - low) / 15
        zero = numpy.clip(numpy.round(-low / scale), 1, 15).astype(int)
    scale = scale.astype(numpy.float16).astype(numpy.float64)
    codes = numpy.clip(numpy.round(values / scale[:, :, None]) + zero[:, :, None], 0, 15).astype(int)
    return codes.reshape(rows, columns), zero, scale


def packed(codes, order=range(8)):
    """Words of 8 codes of 4 bits, which are adjacent in the last dimension; place i in a word has code order[i]."""
    import numpy

    eights = codes.reshape(*codes.shape[:-1], -1, 8).astype(numpy.uint32)
    return sum(eights[..., code] << numpy.uint32(4 * place) for place, code in enumerate(order)).astype(numpy.uint32)


def in_4_bits(name, values, how):
    """The tensors in which GPTQ or AWQ store the matrix, name.weight: {name: (dtype, array)}."""
    import numpy

    codes, zero, scale = quantized(values, how)
    name = name.removesuffix("weight")
    scales = {name + "scales": ("F16", scale.T.astype(numpy.float16))}
    if how["quant_method"] == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {name + "qweight": ("I32", packed(codes.T, order)), name + "qzeros": ("I32", packed(zero.T, order)), **scales}
    groups = numpy.arange(codes.shape[1], dtype=numpy.int32) // (codes.shape[1] // scale.shape[1])
    below = 0 if how["checkpoint_format"] == "gptq_v2" else 1  # of a stored zero point
    return {name + "qweight": ("I32", packed(codes).T), name + "qzeros": ("I32", packed(zero.T - below)), **scales,
            name + "g_idx": ("I32", groups)}


def tensors_of(random, name, shape, config, dtype, in_floats):
    """The tensors of a file for one of the model, {name: (dtype, shape, bytes)}. in_floats: no weights in 4 bits."""
    import numpy

    values, how = weight(random, name, shape, config["model_type"]), four_bits(config)
    if not how or not name.endswith("_proj.weight"):
        return {name: (dtype, shape, stored(values, dtype))}
    if in_floats:
        codes, zero, scale = quantized(values, how)
        repeat = shape[1] // scale.shape[1]
        values = (codes - zero.repeat(repeat, 1)) * scale.repeat(repeat, 1)  # f32 has these numbers
        return {name: ("F32", shape, stored(values, "F32"))}
    arrays = in_4_bits(name, values, how)
    return {n: (d, a.shape, numpy.ascontiguousarray(a).tobytes()) for n, (d, a) in arrays.items()}


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(dict(header, __metadata__={"format": "pt"}), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


def name_in_file(name, tensor, vision):
    if vision:
        return "language_model." + tensor
    if name == "pythia" and tensor == "lm_head.weight":  # as the published files have it
        return "embed_out.weight"
    return tensor.removeprefix("transformer.") if name == "gpt2" else tensor  # as OpenAI's files have it


def write_weights(folder, name, shapes, vision, in_floats):
    import numpy

    config, floats, limit, seed = MODELS[name]
    random = numpy.random.RandomState(seed)
    files, size = [{}], 0
    for tensor in sorted(shapes):
        dtype = "U8" if tensor.endswith(("_blocks", "_scales")) else floats
        parts = tensors_of(random, tensor, shapes[tensor], config, dtype, in_floats)
        for part, (its_dtype, shape, data) in parts.items():
            if size and size + len(data) > limit:
                files.append({})
                size = 0
            files[-1][name_in_file(name, part, vision)] = (its_dtype, shape, data)
            size += len(data)
    if len(files) == 1:
        return write_safetensors(folder / "model.safetensors", files[0])
    index = {}
    for i, tensors in enumerate(files):
        file = f"model-{i + 1:05}-of-{len(files):05}.safetensors"
        write_safetensors(folder / file, tensors)
        index.update(dict.fromkeys(tensors, file))
    text = json.dumps({"metadata": {"total_size": 0}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


def write_folder(name, folder, eos, shapes, vision=False, in_floats=False):
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(MODELS[name][0], eos_token_id=eos[0])
    if in_floats:
        config.pop("quantization_config", None)
    if vision:
        config = {"model_type": "gemma3", "text_config": config, "vision_config": {"hidden_size": 1152}}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    if len(eos) > 1:  # as of Llama 3's instruct models
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of(name)))
    write_weights(folder, name, shapes, vision, in_floats)


# ---- transformers ---


def read_shapes(path):
    """{name: shape} of a safetensors file."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


def in_mxfp4(shapes):
    """The shapes of a file whose experts' weights, [experts, in, out] in transformers, are in MXFP4."""
    result = {}
    for name, shape in shapes.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, width, rows = shape
            result[name + "_blocks"] = [experts, rows, width // 32, 16]
            result[name + "_scales"] = [experts, rows, width // 32]
        else:
            result[name] = shape
    return result


def generate(name, eos):
    """(shapes of the tensors, tokens of each prompt, the margin of each of them) by transformers."""
    import tokenizers
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        in_floats = {k: v for k, v in MODELS[name][0].items() if k != "quantization_config"}
        (folder / "config.json").write_text(json.dumps(in_floats))
        config = transformers.AutoConfig.from_pretrained(folder)
        is_mxfp4 = MODELS[name][0].get("quantization_config", {}).get("quant_method") == "mxfp4"
        model = transformers.AutoModelForCausalLM.from_config(config)
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        shapes = {n: list(t.shape) for n, t in model.state_dict().items() if n not in tied}
        if any(".experts." in n for n in shapes):  # a file has one tensor for each expert, a module one for all
            model.save_pretrained(folder)
            shapes = read_shapes(folder / "model.safetensors")
            (folder / "model.safetensors").unlink()
        if is_mxfp4:  # which transformers reads itself
            shapes = in_mxfp4(shapes)
        write_folder(name, folder, eos, shapes, in_floats=not is_mxfp4)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                                  experts_implementation="eager")
        encode = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode
        tokens, margins = [], []
        for prompt in PROMPTS:
            ids = torch.tensor([encode(prompt).ids])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
                                 eos_token_id=eos, pad_token_id=0, output_logits=True, return_dict_in_generate=True)
            tokens.append(out.sequences[0, ids.shape[1]:].tolist())
            tops = [(logits[0].double().topk(2).values, logits[0].double().std()) for logits in out.logits]
            margins.append([float((top[0] - top[1]) / deviation) for top, deviation in tops])
    return shapes, tokens, margins


def make(name):
    eos = [319]
    shapes, tokens, margins = generate(name, eos)
    if name == "llama":  # two tokens end its texts, the first prompt's early
        eos = [tokens[0][TOKENS // 2 + 8], 319]
        shapes, tokens, margins = generate(name, eos)
    distinct = min(len(set(t)) for t in tokens[:2])
    lengths, margin = list(map(len, tokens)), min(map(min, margins))
    print(f"{name}: margin {margin:.1e}, {distinct} tokens differ at least, {lengths} tokens", flush=True)
    long_enough = name == "llama" or min(map(len, tokens[:2])) == TOKENS
    good = margin >= MARGIN and distinct >= MIN_DISTINCT and long_enough
    made = {"eos": eos, "shapes": shapes, "tokens": tokens}
    if MODELS[name][0].get("quantization_config"):
        made["margins"] = [[round(x, 2) for x in of_prompt] for of_prompt in margins]
    return made, good


def near(name, lines):
    """Compares the tokens of each prompt with those of generate_models.json up to the first that differs."""
    e = json.loads(EXPECTED.read_text())[name]
    same, margins = 0, []
    if len(lines) != len(e["tokens"]):
        sys.exit(f"{len(lines)} lines for {len(e['tokens'])} prompts")
    for line, expected, margin in zip(lines, e["tokens"], e["margins"]):
        tokens = list(map(int, line.split()))
        differs = next((i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b), None)
        if differs is None and len(tokens) != len(expected):
            sys.exit(f"{len(tokens)} tokens instead of {len(expected)}")
        same += len(tokens) if differs is None else differs
        margins += [] if differs is None else [margin[differs]]
    print(f"{same} tokens before the first that differ, of margins {margins} of the logits' deviation")
    if max(margins, default=0) > NEAR:
        sys.exit(f"a token differs whose margin is {max(margins)}; activations in 8 bits explain at most {NEAR}")


def header(folder):
    """The definitions of configure.py that do not name the file."""
    tool = [sys.executable, HERE.parent / "examples/generate/configure.py", folder]
    lines = subprocess.run(tool, check=True, capture_output=True, text=True).stdout.splitlines()[1:]
    return [line for line in lines if "MODEL_CHECKSUM" not in line]


def is_config_read(name):
    """Whether configure.py makes the same of config.json as it was published and as transformers writes it today."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(MODELS[name][0]))
        published = header(folder)
        transformers.AutoConfig.from_pretrained(folder).save_pretrained(folder)
        return [line for line in header(folder) if "MODEL_EOS" not in line] == [
            line for line in published if "MODEL_EOS" not in line]


def dump(expected):
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(arguments):
    command = arguments[0] if arguments else ""
    if command == "names":
        print(*MODELS)
    elif command == "prompts":
        print(*PROMPTS, sep="\n")
    elif command in ("make", "check"):
        made = {name: make(name) for name in arguments[1:] or MODELS}
        bad = [name for name, (_, good) in made.items() if not good]
        if bad:
            sys.exit(f"close to a tie, or too uniform; choose other seeds for {bad}")
        made = {name: value for name, (value, _) in made.items()}
        if command == "make":
            made = {**json.loads(EXPECTED.read_text()), **made}
            EXPECTED.write_text(dump({name: made[name] for name in MODELS if name in made}))
        else:
            expected = json.loads(EXPECTED.read_text())
            differs = [name for name in made if made[name] != expected[name]]
            if differs:
                sys.exit(f"transformers generates other tokens for {differs}")
            differs = [name for name in made if not is_config_read(name)]
            if differs:
                sys.exit(f"configure.py reads the config.json of transformers differently for {differs}")
    elif command in ("folder", "vision"):
        e = json.loads(EXPECTED.read_text())[arguments[1]]
        write_folder(arguments[1], pathlib.Path(arguments[2]), e["eos"], e["shapes"], command == "vision")
    elif command == "near":
        near(arguments[1], sys.stdin.read().splitlines())
    elif command == "expected":
        for tokens in json.loads(EXPECTED.read_text())[arguments[1]]["tokens"]:
            print(*tokens)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
