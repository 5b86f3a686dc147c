"""Texts and expected tokens for tests/generate_gguf.sh.

    python3 tests/generate_gguf.py prompts              the prompts, a line each; \\n and \\\\ are escapes
    python3 tests/generate_gguf.py tokens MODEL         64 greedy tokens behind each prompt (fewer where the text ends), which llama.cpp
                                                        generates with the weights of the file converted to f32
    python3 tests/generate_gguf.py corpus               lines of many scripts, random ones too, for token ids
    python3 tests/generate_gguf.py compare OURS LLAMA   OURS: tokens; LLAMA: what tests/llama_cpp_driver.cc prints with FORCE=OURS. Prints
                                                        how many of llama.cpp's choices are the same, and each other one with the
                                                        difference of its logit. Exits with 1 if a difference is more than 1e-3
    python3 tests/generate_gguf.py f32 FROM TO          writes a GGUF file with all weights in f32, by the package gguf
"""
import json
import pathlib
import random
import sys

FOLDER = pathlib.Path(__file__).parent


def corpus():
    from tokenizer_texts import SENTENCES, corpus as words, random_text
    r = random.Random(1)
    special = ["<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<unk>", "<pad>", "<0x41>", "<h1>", "</table>"]
    for text in SENTENCES + list(words(400)) + [random_text(r, special) for _ in range(3000)]:
        line = text.replace("\0", "").replace("\\", "\\\\").replace("\n", "\\n")
        if line:
            sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")


def compare(ours, llama):
    same = count = 0
    others = []
    for line, (a, b) in enumerate(zip(open(ours), open(llama))):
        choices = [word.split(":") for word in b.split()]
        for at, choice in enumerate(choices):
            if len(choice) < 4:
                sys.exit(f"prompt {line}: ours ends behind {at} tokens, llama.cpp goes on with {choice[0]}")
            count += 1
            same += choice[0] == choice[2]
            if choice[0] != choice[2]:
                others.append((line, at, choice[2], choice[0], float(choice[3])))
        if len(a.split()) != len(choices):
            sys.exit(f"prompt {line}: ours has {len(a.split())} tokens, llama.cpp {len(choices)}")
    print(f"{same} of {count} tokens are llama.cpp's choice")
    for line, at, our, its, difference in others:
        print(f"  prompt {line}, token {at}: {our} where llama.cpp has {its}, whose logit is larger by {difference:.6f}")
    return max((o[4] for o in others), default=0) <= 1e-3


def write_f32(source, target):
    import numpy
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
    for tensor in reader.tensors:
        values = numpy.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32)
        writer.add_tensor(tensor.name, values, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def main(command, *arguments):
    if command in ("prompts", "tokens"):
        expected = json.loads((FOLDER / "generate_gguf.json").read_text())
    if command == "prompts":
        print("\n".join(expected["prompts"]))
    elif command == "tokens":
        print("\n".join(" ".join(map(str, ids)) for ids in expected[arguments[0]]))
    elif command == "corpus":
        corpus()
    elif command == "compare":
        return compare(*arguments)
    elif command == "f32":
        write_f32(*arguments)
    else:
        sys.exit(__doc__)
    return True


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
