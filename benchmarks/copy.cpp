#include "copy.h"

#include <tutti/core/parallel.h>

#include <cstring>

#if defined(__AVX512F__) || defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tutti::benchmarks {
namespace {

typedef float Line __attribute__((vector_size(64)));

void copy_plain(Line* to, const Line* from, std::int64_t lines) {
  for (std::int64_t i = 0; i < lines; ++i) {
    to[i] = from[i];
    asm volatile("" ::: "memory");  // keeps the compiler from turning the loop into memcpy
  }
}

void copy_streaming([[maybe_unused]] Line* to, [[maybe_unused]] const Line* from,
                    [[maybe_unused]] std::int64_t lines) {
#if defined(__AVX512F__)
  for (std::int64_t i = 0; i < lines; ++i)
    _mm512_stream_ps(reinterpret_cast<float*>(to + i), (__m512)from[i]);
  _mm_sfence();
#elif defined(__SSE2__)
  auto* t = reinterpret_cast<__m128i*>(to);
  const auto* f = reinterpret_cast<const __m128i*>(from);
  for (std::int64_t i = 0; i < lines * 4; ++i) _mm_stream_si128(t + i, _mm_load_si128(f + i));
  _mm_sfence();
#else
  copy_plain(to, from, lines);
#endif
}

}  // namespace

const char* name_of(Copy how) {
  return how == Copy::plain ? "plain stores" : how == Copy::library ? "memcpy" : "streaming stores";
}

void copy(void* to, const void* from, std::int64_t bytes, Copy how) {
  auto* t = static_cast<Line*>(to);
  const auto* f = static_cast<const Line*>(from);
  parallel_for(bytes / 64, 1024, [&](std::int64_t begin, std::int64_t end) {
    if (how == Copy::plain) copy_plain(t + begin, f + begin, end - begin);
    else if (how == Copy::library)
      std::memcpy(t + begin, f + begin, static_cast<std::size_t>(end - begin) * 64);
    else copy_streaming(t + begin, f + begin, end - begin);
  });
}

}  // namespace tutti::benchmarks
