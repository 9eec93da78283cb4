// From a weight's type to code for it. Include inside a region.

// Calls f.template run<kType>() for the weight's type.
template <typename F>
PAGODA_SIMD void with_type(tensor::DType type, const F& f) {
  switch (type) {
    case tensor::DType::kF32:
      return f.template run<tensor::DType::kF32>();
    case tensor::DType::kF16:
      return f.template run<tensor::DType::kF16>();
    case tensor::DType::kBF16:
      return f.template run<tensor::DType::kBF16>();
    case tensor::DType::kQ4_0:
      return f.template run<tensor::DType::kQ4_0>();
    case tensor::DType::kQ4_1:
      return f.template run<tensor::DType::kQ4_1>();
    case tensor::DType::kQ5_0:
      return f.template run<tensor::DType::kQ5_0>();
    case tensor::DType::kQ5_1:
      return f.template run<tensor::DType::kQ5_1>();
    case tensor::DType::kQ8_0:
      return f.template run<tensor::DType::kQ8_0>();
    case tensor::DType::kQ2_K:
      return f.template run<tensor::DType::kQ2_K>();
    case tensor::DType::kQ3_K:
      return f.template run<tensor::DType::kQ3_K>();
    case tensor::DType::kQ4_K:
      return f.template run<tensor::DType::kQ4_K>();
    case tensor::DType::kQ5_K:
      return f.template run<tensor::DType::kQ5_K>();
    case tensor::DType::kQ6_K:
      return f.template run<tensor::DType::kQ6_K>();
    case tensor::DType::kIQ4_NL:
      return f.template run<tensor::DType::kIQ4_NL>();
    case tensor::DType::kIQ4_XS:
      return f.template run<tensor::DType::kIQ4_XS>();
  }
}
