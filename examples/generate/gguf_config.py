"""Reads the metadata of a GGUF file, and says them as the config.json of a Hugging Face model would.

    file = gguf_config.read("model.gguf")
    config = gguf_config.config(file)

Only the header is read. The program that is compiled for it checks the file again (te/io/gguf.h). Python's standard
library is enough.
"""
import struct


class Unsupported(Exception):
    pass


SCALARS = dict(enumerate("B b H h I i f ?".split())) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Reader:
    """Numbers and strings of a header, one behind the other."""

    def __init__(self, file):
        self.file, self.data = file, bytearray()

    def bytes(self, n):
        part = self.file.read(n) if n < 1 << 31 else b""
        if len(part) != n:
            raise Unsupported(f"the header ends in the middle, at byte {len(self.data)}")
        self.data += part
        return part

    def number(self, code):
        return struct.unpack("<" + code, self.bytes(struct.calcsize(code)))[0]

    def text(self):
        return self.bytes(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind):
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise Unsupported(f"a value of kind {kind}")
        kind, count = self.number("I"), self.number("Q")
        if kind in SCALARS:
            return struct.unpack(f"<{count}{SCALARS[kind]}", self.bytes(count * struct.calcsize(SCALARS[kind])))
        return [self.value(kind) for _ in range(count)]


class File:
    """values: by key. tensors: by name, the shape as [rows, cols], the number of the type, the offset in the data.
    header: the bytes in front of the data, of all files of a split model."""

    def __init__(self):
        self.values, self.tensors, self.header = {}, {}, bytearray()

    def add(self, path):
        with open(path, "rb") as file:
            reader, values = Reader(file), {}
            if reader.bytes(4) != b"GGUF":
                raise Unsupported(f"{path} is no GGUF file")
            version = reader.number("I")
            if version not in (2, 3):
                raise Unsupported(f"version {version} of GGUF; 2 and 3 are supported")
            tensors, count = reader.number("Q"), reader.number("Q")
            for _ in range(count):
                key = reader.text()
                values[key] = reader.value(reader.number("I"))
            for _ in range(tensors):
                name = reader.text()
                shape = [reader.number("Q") for _ in range(reader.number("I"))]
                self.tensors[name] = (shape[::-1], reader.number("I"), reader.number("Q"))
            align = values.get("general.alignment", 32)
            self.data_at = -(-len(reader.data) // align) * align
        self.header += reader.data
        self.values = self.values or values
        return values

    def floats(self, path, name):
        """The values of a tensor in f32 of an unsplit file."""
        shape, kind, offset = self.tensors[name]
        if kind != 0 or len(shape) != 1:
            raise Unsupported(f"{name} is no vector of f32")
        with open(path, "rb") as file:
            file.seek(self.data_at + offset)
            return struct.unpack(f"<{shape[0]}f", file.read(4 * shape[0]))


def read(path):
    file, path = File(), str(path)
    file.path = path
    splits = file.add(path).get("split.count", 0)
    for i in range(1, splits):
        file.add(path.replace(f"-00001-of-{splits:05}", f"-{i + 1:05}-of-{splits:05}"))
    return file


# Keys of an architecture that config.json has under another name.
NAMES = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_epsilon", "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta", "rope.freq_base_swa": "rope_local_base_freq",
    "attention.sliding_window": "sliding_window", "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping", "vocab_size": "vocab_size",
}
GPT2_NAMES = {"num_hidden_layers": "n_layer", "hidden_size": "n_embd", "intermediate_size": "n_inner",
              "num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}
# Keys that say what these lists compute anyway, with the values that they may have; None: any.
FIXED = {"expert_count": (0,), "expert_used_count": (0,), "attention.causal": (True,), "rope.scaling.type": ("none",),
         "rope.scaling.finetuned": None, "use_parallel_residual": (False,), "tensor_data_layout": None,
         "rope.scaling.attn_factor": (1.0,)}
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3",
                 "gpt2": "gpt2"}
WINDOWS = ("gemma2", "gemma3")  # other architectures have none in llama.cpp, whatever the file says


def rope_scaling(file, values, head_dim, theta):
    """What config.json calls rope_scaling. Takes the keys out of `values`."""
    kind, factor = values.pop("rope.scaling.type", "none"), values.pop("rope.scaling.factor", 0)
    factor = values.pop("rope.scale_linear", 0) or factor
    original = values.pop("rope.scaling.original_context_length", 8192)
    if "rope_freqs.weight" in file.tensors:
        return llama3_scaling(file.floats(file.path, "rope_freqs.weight"), head_dim, theta, original)
    if kind == "none" or not factor or factor == 1:
        values["rope.scaling.type"] = "none" if kind == "linear" else kind
        return None
    if kind != "linear":
        raise Unsupported(f"rope.scaling.type is {kind}; supported are none and linear")
    return {"rope_type": "linear", "factor": factor}


def llama3_scaling(factors, head_dim, theta, original):
    """The parameters whose factors these are: the file has a tensor of the factors themselves. The models that exist
    have low_freq_factor 1 and high_freq_factor 4."""
    low, high, pi = 1.0, 4.0, 3.141592653589793
    for length in {original, 8192}:
        for factor in (2.0, 4.0, 8.0, 16.0, 32.0):
            expected = []
            for i in range(head_dim // 2):
                wave = 2 * pi * theta ** (2 * i / head_dim)
                smooth = min(1.0, max(0.0, (length / wave - low) / (high - low)))
                expected.append(1 / ((1 - smooth) / factor + smooth))
            if len(factors) == len(expected) and all(abs(a - b) < 1e-4 * b for a, b in zip(factors, expected)):
                return {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                        "original_max_position_embeddings": length}
    raise Unsupported("rope_freqs.weight has factors that are not those of Llama 3.1's scaling")


def config(file):
    """The config.json that a model of this file would have, as a dictionary."""
    name = file.values.get("general.architecture")
    if name not in ARCHITECTURES:
        raise Unsupported(f"general.architecture is {name}; supported are {', '.join(ARCHITECTURES)}")
    values = {k[len(name) + 1:]: v for k, v in file.values.items() if k.startswith(name + ".")}
    table = file.tensors.get("token_embd.weight")
    if not table or len(table[0]) != 2:
        raise Unsupported("there is no matrix token_embd.weight")
    heads = values.get("attention.head_count", 1)
    for key, value in values.items():
        if key in NAMES and isinstance(value, (list, tuple)):
            raise Unsupported(f"{name}.{key} is an array: layers differ from each other")
    head_dim = values.get("attention.key_length") or values.get("embedding_length", 0) // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if values.pop(key, head_dim) != head_dim:
            raise Unsupported(f"{name}.{key} differs from the {head_dim} dimensions of a head")
    # What a file without these keys has in llama.cpp.
    theta = values.setdefault("rope.freq_base", 1e4)
    if name == "gemma3":
        values.setdefault("attention.sliding_window", None)
    scaling = rope_scaling(file, values, head_dim, theta)
    out = {"model_type": ARCHITECTURES[name], "head_dim": head_dim, "rope_scaling": scaling,
           "tie_word_embeddings": "output.weight" not in file.tensors}
    pattern = values.pop("attention.sliding_window_pattern", None)
    if isinstance(pattern, (list, tuple)):
        out["layer_types"] = ["sliding_attention" if p else "full_attention" for p in pattern]
    elif pattern is not None:
        out["sliding_window_pattern"] = pattern
    for key, value in values.items():
        if key in FIXED and (FIXED[key] is None or value in FIXED[key]):
            continue
        if key not in NAMES or (key == "attention.sliding_window" and name not in WINDOWS):
            raise Unsupported(f"{name}.{key} is {str(value)[:60]}; it is not supported")
        out[NAMES[key]] = value
    if out.setdefault("vocab_size", table[0][0]) != table[0][0]:
        raise Unsupported(f"{name}.vocab_size is {out['vocab_size']}, token_embd.weight has {table[0][0]} rows")
    if name == "gpt2":
        out = {GPT2_NAMES.get(key, key): value for key, value in out.items()}
        out["scale_attn_weights"] = True
    if name.startswith("gemma"):
        # The scale of the scores is not in the file. In the 27B models it is that of hidden / heads dimensions.
        largest = {"gemma2": 46, "gemma3": 62}[name]
        out["query_pre_attn_scalar"] = out["hidden_size"] // heads if out["num_hidden_layers"] == largest else head_dim
    out["eos_token_id"] = [file.values[f"tokenizer.ggml.{key}_token_id"] for key in ("eos", "eot")
                           if f"tokenizer.ggml.{key}_token_id" in file.values]
    return out
