// Closes what avx512/begin.h opened.
// Not self-contained: a bracket with begin.h.
}  // namespace pagoda::kernels::avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
#undef PAGODA_SIMD
