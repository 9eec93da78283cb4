// Who fills which entries of a KernelTable. Internal to kernels: others ask kernel_table(isa).
// Each function lives at the end of its instruction set's source file, outside the target region, and is called only by
// dispatch.cc.
#pragma once

#include "kernels/kernels.h"

namespace pagoda::kernels {

// matmul, pack_rows, gather_row, quantize_rows, bf16_rows.
void fill_matmul_ref(KernelTable& table);
void fill_matmul_avx2(KernelTable& table);
void fill_matmul_avx512(KernelTable& table);
void fill_matmul_amx(KernelTable& table);

// rms_norm, add, add_bias, scale, gated, rope.
void fill_rows_ref(KernelTable& table);
void fill_rows_avx2(KernelTable& table);
void fill_rows_avx512(KernelTable& table);

// Rows of logits.
void fill_logits_ref(KernelTable& table);
void fill_logits_avx2(KernelTable& table);
void fill_logits_avx512(KernelTable& table);

// kv_write, attention_prepare, attention_span, attention_merge, attention_finish.
void fill_attention_ref(KernelTable& table);
void fill_attention_avx2(KernelTable& table);
void fill_attention_avx512(KernelTable& table);
void fill_attention_amx(KernelTable& table);

}  // namespace pagoda::kernels
