// Closes what avx512/begin.h opened.
}  // namespace pagoda::kernels::avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
#undef PAGODA_SIMD
