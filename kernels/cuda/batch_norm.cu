// This file defines the table of the CUDA batch-norm kernels and the kernels that work on
// per-channel values only.
#include "batch_norm_passes.h"
#include "batch_norm_statistics.h"

namespace tutti::kernels::cuda {
namespace {

constexpr int channel_threads = 512;

// Computes the outputs that `to` asks for. It runs as one block, so that it advances the counters
// of the running statistics after all threads have read them. `from` may be the packet of moments
// that it writes.
__global__ __launch_bounds__(channel_threads) void finalize_kernel(StatisticsPacket from,
                                                                   Statistics to) {
  const Counters before = read_counters(to);
  check_ranks(from, to);
  const DoubleDouble count = count_of(from);
  const std::int64_t C = to.channels;
  // All threads have read the counters, and the count of a packet that may be overwritten below.
  __syncthreads();
  for (std::int64_t c = threadIdx.x; c < C; c += blockDim.x)
    put_statistics(to, before, c, count.high, get_moments(from, count, C, c));
  if (threadIdx.x == 0) put_counters(to, before, count.high);
}

__global__ void running_statistics_kernel(Values mean, Values var, std::int64_t channels,
                                          Epsilon eps, double* to_mean, double* to_rstd) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  to_mean[c] = mean[c];
  to_rstd[c] = rstd_of(var[c], eps);
}

tutti::cuda::Grid one_thread_each(std::int64_t channels) {
  return {.blocks = static_cast<unsigned>((channels + channel_threads - 1) / channel_threads),
          .threads = channel_threads};
}

// ---- The table.

void moments(const Tensor& x, const Tensor& position_weights, const Tensor& moments) {
  const tutti::cuda::DeviceScope scope(x.device().index());
  launch_moments(x, position_weights, {.channels = x.size(1), .moments = moments.data<double>()});
}

void moment_sums(const Tensor& x, const Tensor& position_weights, const PacketHeader& header,
                 const Tensor& sums) {
  const tutti::cuda::DeviceScope scope(x.device().index());
  launch_moments(x, position_weights,
                 {.channels = x.size(1),
                  .sums = sums.data<double>(),
                  .exact = sums.numel() != packet_size(x.size(1)),
                  .header = header});
}

void finalize_statistics(const Tensor& sums, const Tensor& moments, const StatisticsUpdate& update,
                         const Tensor& mean, const Tensor& rstd) {
  const tutti::cuda::DeviceScope scope(moments.device().index());
  const Statistics to = statistics_of(moments, packet_channels(moments), update, mean, rstd);
  tutti::cuda::launch("batch_norm statistics", finalize_kernel,
                      tutti::cuda::Grid{.blocks = 1, .threads = channel_threads},
                      packet_of(sums, moments), to);
}

void running_statistics(const RunningStatistics& running, Epsilon eps, const Tensor& mean,
                        const Tensor& rstd) {
  const tutti::cuda::DeviceScope scope(mean.device().index());
  const std::int64_t C = mean.numel();
  tutti::cuda::launch("batch_norm running_statistics", running_statistics_kernel,
                      one_thread_each(C), values_of(running.mean, 0), values_of(running.var, 1), C,
                      eps, mean.data<double>(), rstd.data<double>());
}

std::int64_t mask_size(const Tensor& x) {
  std::int64_t size = 0;
  with_layout(x, {}, [&]<class T, bool rows, bool aligned>() {
    const Geometry g = cut<full_width<T>>(x, rows, 1, 1);
    size = g.outer * g.vectors * (rows ? 1 : g.channels);
  });
  return size;
}

}  // namespace

extern const BatchNorm batch_norm{.moments = moments,
                                  .moment_sums = moment_sums,
                                  .finalize_statistics = finalize_statistics,
                                  .running_statistics = running_statistics,
                                  .mask_size = mask_size,
                                  .apply = batch_norm_apply,
                                  .finalize_and_apply = batch_norm_finalize_and_apply,
                                  .gradient_sums = batch_norm_gradient_sums,
                                  .apply_grad = batch_norm_apply_grad};

}  // namespace tutti::kernels::cuda
