// This file holds what batch-norm kernels know of each channel, its statistics and parameters: in
// global memory, in the shared memory of a block and in the registers of a thread.
#pragma once

#include "../batch_norm_math.h"
#include "vector.h"

namespace tutti::kernels::cuda {

/// The statistics and parameters of all channels, in global memory.
struct Channels {
  const double *mean, *rstd;
  Values weight, bias;
};

inline Channels channels_of(const Normalization& n) {
  return {n.mean.data<double>(), n.rstd.data<double>(), values_of(n.weight, 1),
          values_of(n.bias, 0)};
}

/// Computes `fields` numbers for each of the channels [channel, channel + width) of a block and
/// stores them in shared memory, so that each is computed once instead of once per thread.
/// compute(c, values) computes those of channel c; field f of channel `channel` + c is stored at
/// shared[f * width + c]. Every thread of the block must call it.
template <int fields, class A, class Compute>
__device__ void share_channels(A* shared, std::int64_t channel, int width, std::int64_t channels,
                               const Compute& compute) {
  for (int c = static_cast<int>(threadIdx.x); c < width && channel + c < channels;
       c += static_cast<int>(blockDim.x)) {
    A values[fields];
    compute(channel + c, values);
#pragma unroll
    for (int f = 0; f < fields; ++f) shared[f * width + c] = values[f];
  }
  __syncthreads();
}

/// Loads field f of the K channels that the calling thread works on from shared memory.
template <int K, class A>
__device__ void take(A (&to)[K], const A* shared, int f, int width, int across) {
  const int first = static_cast<int>(threadIdx.x) % across * K;
#pragma unroll
  for (int k = 0; k < K; ++k) to[k] = shared[f * width + first + k];
}

/// Computes the three fields that Affine (below) loads.
template <class A>
__device__ void put_output_coefficients(double mean, double rstd, double weight, double bias,
                                        A* center_scale_shift) {
  const OutputCoefficients<A> of = output_coefficients<A>(mean, rstd, weight, bias);
  center_scale_shift[0] = of.center;
  center_scale_shift[1] = of.scale;
  center_scale_shift[2] = of.shift;
}

/// The OutputCoefficients of the K channels that the calling thread works on.
template <class A, int K>
struct Affine {
  A center[K], scale[K], shift[K];

  __device__ Affine(const A* shared, int width, int across) {
    take(center, shared, 0, width, across);
    take(scale, shared, 1, width, across);
    take(shift, shared, 2, width, across);
  }
};

}  // namespace tutti::kernels::cuda
