// Rows of logits over 16 lanes (ref/logits.cc defines them).
// Not self-contained: include inside a region, after simd.h, simd_logits.h and generic/math.h.

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Lanes from n on hold -inf.
PAGODA_SIMD F32 load_logits(const float* x, int n) {
  if (n >= kLanes) return load(x);
  return select(lanes_in(0, n), load_first(x, n), splat(kLowest));
}

inline void softcap_logits(float* x, int n, float cap) {
  const F32 all = splat(cap);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, softcap(load(x + i), all));
  if (i < n) store_first(x + i, softcap(load_first(x + i, n - i), all), n - i);
}

// The largest value, -inf if there is none. Four maxima at once, since one waits for itself; of two zeros it may be either.
inline float largest_value(const float* x, int n) {
  constexpr int kChains = 4;
  F32 highest[kChains];
  for (F32& chain : highest) chain = splat(kLowest);
  int i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      highest[chain] = max(load(x + i + chain * kLanes), highest[chain]);
    }
  }
  for (; i < n; i += kLanes) highest[0] = max(load_logits(x + i, n - i), highest[0]);
  return reduce_max(max(max(highest[0], highest[1]), max(highest[2], highest[3])));
}

// The largest value first, then where it first is: its own bits, whichever zero it is.
inline LogitTile largest(const float* x, int n) {
  const float value = largest_value(x, n);
  if (value == kLowest) return {.max = kLowest, .index = 0};
  for (int i = 0;; i += kLanes) {
    const uint32_t found = lane_bits(equal(load_logits(x + i, n - i), splat(value)));
    if (found == 0) continue;
    const int index = i + std::countr_zero(found);
    return {.max = x[index], .index = index};
  }
}

inline void logit_tiles(const float* x, int n, LogitTile* tiles) { fill_tiles(largest, x, n, tiles); }

inline int argmax(const float* x, int n) { return largest(x, n).index; }

inline TileSum tile_sum(const float* x, int n) {
  TileSum tile{.max = largest_value(x, n), .sum = 0.0f};
  if (tile.max == kLowest) return tile;
  F32 sum = zero();
  for (int i = 0; i < n; i += kLanes) sum = add(sum, exp(sub(load_logits(x + i, n - i), splat(tile.max))));
  tile.sum = reduce_add(sum);
  return tile;
}

inline double log_sum_exp(const float* x, int n) { return fold_tiles(tile_sum, x, n); }

inline ExpSums exp_sums(const float* x, int n, float max_logit, float scale, float* out) {
  const F32 highest = splat(max_logit);
  const F32 factor = splat(scale);
  const F32 never = splat(kExpNever);
  F32 mass = zero();
  F32 exponent = zero();
  for (int i = 0; i < n; i += kLanes) {
    const F32 e = max(mul(sub(load_logits(x + i, n - i), highest), factor), never);
    const F32 weight = exp_finite(e);
    mass = add(mass, weight);
    exponent = fma(weight, e, exponent);
    if (n - i >= kLanes) {
      store(out + i, weight);
    } else {
      store_first(out + i, weight, n - i);
    }
  }
  return {.mass = reduce_add(mass), .exponent = reduce_add(exponent)};
}

inline int find_between(const float* x, int n, float low, float high, int32_t base, int32_t* out) {
  const F32 from = splat(low);
  const F32 to = splat(high);
  const auto inside = [&](F32 value) { return lane_bits(both(at_least(value, from), less(value, to))); };
  int found = 0;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const uint32_t bits = inside(load(x + i));
    if (bits != 0) found += store_packed(out + found, add(lane_numbers(), splat_i32(base + i)), bits);  // found <= i
  }
  for (; i < n; ++i) {
    if (x[i] >= low && x[i] < high) out[found++] = base + i;
  }
  return found;
}
