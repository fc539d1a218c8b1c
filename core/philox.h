// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) computes
// four 32-bit numbers from a seed and a counter, on the host and on the device. core/random.h
// keeps the counter.
#pragma once

#include "host_device.h"

#include <cstdint>

namespace tutti {

struct PhiloxBlock {
  std::uint32_t words[4];
};

TUTTI_HOST_DEVICE inline PhiloxBlock philox(std::uint64_t seed, std::uint64_t counter) {
  PhiloxBlock c{
      {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}};
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c.words[0],
                        b = std::uint64_t{0xCD9E8D57} * c.words[2];
    c = {{static_cast<std::uint32_t>(b >> 32) ^ c.words[1] ^ k0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c.words[3] ^ k1, static_cast<std::uint32_t>(a)}};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

}  // namespace tutti
