/* safetensors.h -- named tensors and strings in a file: the safetensors format of Hugging Face
 * (https://github.com/huggingface/safetensors): the header's length in eight bytes, a JSON header, the tensors' bytes.
 *
 * Do this:
 *     te_safetensor t[2];
 *     t[0] = te_safetensor_matrix("fc.weight", TE_bf16, 3072, 768, weight);      // host or target memory
 *     t[1] = te_safetensor_matrix("fc.bias", TE_bf16, 1, 3072, bias);
 *     TE_TRY(te_safetensors_write("model.safetensors", t, 2, 0, 0, &ctx));
 *
 *     te_safetensors file;
 *     TE_TRY(te_safetensors_open(&file, "model.safetensors", &ctx));             // checks all of the header
 *     te_status status = te_safetensors_load(&file, t, 2, 1, &ctx);              // checks all, then reads
 *     te_safetensors_close(&file);
 *
 * A load takes weights in the format of somebody else: F32, BF16 and F16 become the dtype that is asked for, rounded to
 * nearest even, and [1, n] and [n] are the same. It is refused where a number would become infinite; integers and FP8
 * are never converted.
 *
 * A file may come from anybody: what is wrong with it is TE_ERROR_FORMAT with a text that names the tensor; nothing is
 * read out of bounds, and no size is believed before it was checked against the file's own.
 */
#ifndef TE_SAFETENSORS_H
#define TE_SAFETENSORS_H

#include "safetensor.h"        /* te_safetensor, te_safetensor_of, te_safetensor_matrix */
#include "safetensors_read.h"  /* te_safetensors_open, _open_memory, _map, _load, _close */
#include "safetensors_write.h" /* te_safetensors_write, te_safetensors_write_sealed */

#endif
