// Closes what amx/begin.h opened.
// Not self-contained: a bracket with begin.h.
}  // namespace pagoda::kernels::amx
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
#undef PAGODA_SIMD
