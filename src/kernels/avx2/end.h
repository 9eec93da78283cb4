// Closes what avx2/begin.h opened.
// Not self-contained: a bracket with begin.h.
}  // namespace pagoda::kernels::avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef PAGODA_SIMD
