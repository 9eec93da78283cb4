#include "kernels/math.h"

namespace pagoda::kernels {

double log_f64(double x) {
  constexpr uint64_t kFractionMask = (uint64_t{1} << 52) - 1;
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & kFractionMask) | (uint64_t{1023} << 52));
  if (m > 0x1.6a09e667f3bcdp+0) {
    m = 0.5 * m;
    ++exponent;
  }
  const double f = (m - 1.0) / (m + 1.0);
  const double z = f * f;
  double series = 0.0;  // sum of z^k / (2k + 1), |z| < 0.0295
  for (int k = 11; k >= 1; --k) series = (series + 1.0 / (2 * k + 1)) * z;
  return exponent * kLn2 + (2.0 * f + 2.0 * f * series);
}

}  // namespace pagoda::kernels
