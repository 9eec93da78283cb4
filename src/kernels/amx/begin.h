// Opens the AMX region: namespace pagoda::kernels::amx, and code generation for AVX-512 with conversions to bf16. The tiles'
// own instructions are written out in tiles.h and need no target. Use:
//   every #include of the file, then
//   #include "kernels/amx/begin.h", avx512/simd.h, generic/*.h, code, #include "kernels/amx/end.h".
// No flags per file: an inline library function compiled with them could be the copy the linker keeps (simdjson's way).
// PAGODA_SIMD marks the small functions that must inline into their callers.
// Not self-contained: a bracket with end.h.
#define PAGODA_SIMD [[gnu::always_inline]] inline
#if defined(__clang__)
#pragma clang attribute push(                                                                          \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16"))), \
    apply_to = function)
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // gcc 12's own _mm512_undefined_ps
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
#endif
namespace pagoda::kernels::amx {
