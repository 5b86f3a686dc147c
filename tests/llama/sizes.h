/* sizes.h -- the sizes of the models in this folder (make_models.py), as examples/llama/sizes.py writes them. */
#define LLAMA (64, 88, 96, 4, 2, 16, 10000.0f)
#define QWEN3 (64, 88, 96, 4, 2, 32, 1000000.0f)
#define GEMMA2 (64, 88, 96, 4, 2, 16, 0.2041241452319315f, 8.0f, 8)
#define GPT2 (64, 256, 96, 4, 48)
#define LLAMA31 (64, 88, 96, 4, 2, 16, 100.0f, 8.0f, 1.0f, 4.0f, 16)
#define QWEN2 (64, 88, 96, 4, 2, 16, 1000000.0f)
