// The per-channel kernels of batch norm on CUDA, what stands for several steps at once, and the
// table.
#include "batch_norm_gradient.h"
#include "batch_norm_passes.h"
#include "batch_norm_resident.h"
#include "batch_norm_statistics.h"

namespace tutti::kernels::cuda {
namespace {

constexpr int channel_threads = 512;

// From a packet of sums, or else of moments, to everything that `to` asks for. One block, so that
// the counters are moved when all channels have seen them.
__global__ void settle_kernel(const double* sums, bool exact, const double* moments,
                              Statistics to) {
  const Counters before = read_counters(to);
  const std::int64_t C = to.channels;
  if (to.ranks > 0) {  // Message::agrees
    const double each = sums[message_at + 2] / to.ranks;
    if (!(each * each * to.ranks == sums[message_at + 3])) to.running_mean = nullptr;
  }
  double n = 0;
  for (std::int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    double mean, m2;
    if (sums) get_sums(sums, exact, C, c, n, mean, m2);
    else n = moments[0], mean = moments[packet_header + c], m2 = moments[packet_header + C + c];
    put_statistics(to, before, c, n, mean, m2);
  }
  __syncthreads();
  if (threadIdx.x == 0) put_counters(to, before, n);
}

__global__ void finish_running_kernel(Values mean, Values var, std::int64_t channels, double eps,
                                      bool floor, double* to_mean, double* to_rstd) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  to_mean[c] = mean[c];
  to_rstd[c] = rstd_of(var[c], eps, floor);
}

__global__ void parameter_grad_kernel(const double* sums, const double* rstd, std::int64_t channels,
                                      Target weight_grad, Target bias_grad) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  weight_grad.put(c, sums[packet_header + channels + c] * rstd[c]);
  bias_grad.put(c, sums[packet_header + c]);
}

tutti::cuda::Grid one_thread_each(std::int64_t channels) {
  return {.blocks = static_cast<unsigned>((channels + channel_threads - 1) / channel_threads),
          .threads = channel_threads};
}

std::int64_t channels_in(const Tensor& packet) { return (packet.numel() - packet_header) / 2; }

// `sums` undefined: `moments` is what there is.
void settle_from(const Tensor& sums, const Tensor& moments, const Statistics& to) {
  const bool exact = sums.defined() && sums.numel() != packet_size(to.channels);
  tutti::cuda::launch("batch_norm statistics", settle_kernel,
                      tutti::cuda::Grid{.blocks = 1, .threads = channel_threads},
                      sums.defined() ? sums.data<double>() : nullptr, exact, moments.data<double>(),
                      to);
}

// ---- the table

void moments(const Tensor& x, const Tensor& weights, const Tensor& packet) {
  const tutti::cuda::DeviceScope scope(x.device().index());
  Statistics to = statistics_of(x.size(1));
  add_moments(to, packet);
  launch_moments(x, weights, to);
}

void moment_sums(const Tensor& x, const Tensor& weights, const Tensor& sums,
                 const Message& message) {
  const tutti::cuda::DeviceScope scope(x.device().index());
  Statistics to = statistics_of(x.size(1));
  to.message = message;
  add_sums(to, sums);
  launch_moments(x, weights, to);
}

void to_sums(const Tensor& moments, const Tensor& sums) {
  const tutti::cuda::DeviceScope scope(moments.device().index());
  Statistics to = statistics_of(channels_in(moments));
  add_sums(to, sums);
  settle_from({}, moments, to);
}

void from_sums(const Tensor& sums, const Tensor& moments) {
  const tutti::cuda::DeviceScope scope(moments.device().index());
  Statistics to = statistics_of(channels_in(moments));
  add_moments(to, moments);
  settle_from(sums, moments, to);
}

void finish(const Tensor& packet, Epsilon eps, const Tensor& mean, const Tensor& rstd) {
  const tutti::cuda::DeviceScope scope(packet.device().index());
  Statistics to = statistics_of(channels_in(packet));
  add_finish(to, eps, mean, rstd);
  settle_from({}, packet, to);
}

void update(const Tensor& packet, Tracking tracking, double momentum,
            const RunningStatistics& running) {
  const tutti::cuda::DeviceScope scope(packet.device().index());
  Statistics to = statistics_of(channels_in(packet));
  add_update(to, tracking, momentum, running);
  settle_from({}, packet, to);
}

void settle(const Tensor& sums, const Tensor& moments, const Settlement& how, const Tensor& mean,
            const Tensor& rstd) {
  const tutti::cuda::DeviceScope scope(moments.device().index());
  settle_from(sums, moments, statistics_of(moments, channels_in(moments), how, mean, rstd));
}

void finish_running(const RunningStatistics& running, Epsilon eps, const Tensor& mean,
                    const Tensor& rstd) {
  const tutti::cuda::DeviceScope scope(mean.device().index());
  const std::int64_t C = mean.numel();
  tutti::cuda::launch("batch_norm finish_running", finish_running_kernel, one_thread_each(C),
                      values_of(running.mean, 0), values_of(running.var, 1), C, eps.value,
                      eps.floor, mean.data<double>(), rstd.data<double>());
}

std::int64_t mask_size(const Tensor& x) {
  std::int64_t size = 0;
  with_layout(x, {}, [&]<class T, bool rows, bool aligned>() {
    const Geometry g = cut<full_width<T>>(x, rows, 1, 1);
    size = g.outer * g.vectors * (rows ? 1 : g.channels);
  });
  return size;
}

void reduce_grad(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                 const Tensor& masked) {
  batch_norm_reduce_grad(dy, of, sums, masked, {}, {}, {});
}

void parameter_grad(const Tensor& sums, const Tensor& rstd, const Tensor& weight_grad,
                    const Tensor& bias_grad) {
  if (!weight_grad.defined() && !bias_grad.defined()) return;
  const tutti::cuda::DeviceScope scope(sums.device().index());
  const std::int64_t C = channels_in(sums);
  tutti::cuda::launch("batch_norm parameter_grad", parameter_grad_kernel, one_thread_each(C),
                      sums.data<double>(), rstd.data<double>(), C, target_of(weight_grad),
                      target_of(bias_grad));
}

void forward(const Tensor& x, const Tensor& weights, const Tensor& moments, const Settlement& how,
             const Normalization& to, const Tensor& y) {
  const tutti::cuda::DeviceScope scope(x.device().index());
  const Statistics statistics = statistics_of(moments, x.size(1), how, to.mean, to.rstd);
  if (!weights.defined() && resident_forward(x, statistics, to, y)) return;
  launch_moments(x, weights, statistics);
  batch_norm_apply(x, to, y);
}

void backward(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
              const Tensor& masked, const Tensor& weight_grad, const Tensor& bias_grad,
              const Tensor& moments, const Tensor& weights, Epsilon eps, const Tensor& dx) {
  const tutti::cuda::DeviceScope scope(dy.device().index());
  if (!weights.defined() &&
      resident_backward(dy, of, sums, masked, weight_grad, bias_grad, moments, eps, dx))
    return;
  batch_norm_reduce_grad(dy, of, sums, masked, weight_grad, bias_grad, {});
  NormalizationGrad rest = of;
  if (masked.defined()) rest.forward.relu = false;  // it is masked already
  batch_norm_apply_grad(masked.defined() ? masked : dy, rest, sums, moments, weights, eps, dx);
}

}  // namespace

const BatchNorm& batch_norm() {
  static constexpr BatchNorm table{moments,
                                   to_sums,
                                   from_sums,
                                   finish,
                                   finish_running,
                                   update,
                                   mask_size,
                                   batch_norm_apply,
                                   reduce_grad,
                                   parameter_grad,
                                   batch_norm_apply_grad,
                                   moment_sums,
                                   settle,
                                   forward,
                                   batch_norm_reduce_grad,
                                   backward};
  return table;
}

}  // namespace tutti::kernels::cuda
