// Opens the AVX-512 region: namespace pagoda::kernels::avx512, and code generation for the instruction set. Use:
//   every #include of the file, then
//   #include "kernels/avx512/begin.h", simd.h, generic/*.h, code, #include "kernels/avx512/end.h".
// No flags per file: an inline library function compiled with them could be the copy the linker keeps (simdjson's way).
// PAGODA_SIMD marks the small functions that must inline into their callers.
// Not self-contained: a bracket with end.h.
#define PAGODA_SIMD [[gnu::always_inline]] inline
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), \
                             apply_to = function)
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // gcc 12's own _mm512_undefined_ps
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#endif
namespace pagoda::kernels::avx512 {
