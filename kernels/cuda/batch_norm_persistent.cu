// A persistent kernel is a cooperative launch of at most one block per multiprocessor. The blocks
// keep x (in the backward, x and the gradient) in shared memory between the reduction and the pass
// that uses its result, so that global memory is read once.
//
// The kernels support channels_last tensors only. Every block reduces its rows, all blocks of the
// grid synchronise, and then every block merges the partial results of its team and processes the
// rows that it holds. batch_norm_persistent_plan.h says what slices and teams are, and which
// tensors these kernels take.
#include "batch_norm_persistent.h"

#include "../../core/cuda/collectives.h"
#include "batch_norm_gradient.h"
#include "batch_norm_moments.h"
#include "batch_norm_persistent_plan.h"
#include "workspace.h"

#include <cooperative_groups.h>

namespace tutti::kernels::cuda {
namespace {

// The shared memory of a block.
template <class T>
struct Held {
  static constexpr int V = full_width<T>;
  using A = Accumulate<T>;
  Pack<T, V>* packs;  // [tensor][depth][thread]
  double* scratch;
  A* channels;  // [field][channel of the slice]

  __device__ Held(const PersistentPlan& plan, int tensors) {
    packs = tutti::cuda::dynamic_shared<Pack<T, V>>();
    scratch = reinterpret_cast<double*>(packs + tensors * plan.depth * row_threads);
    channels = reinterpret_cast<A*>(scratch + plan.scratch);
  }
  __device__ Pack<T, V>& at(int tensor, int i, const PersistentPlan& plan) {
    return packs[(tensor * plan.depth + i) * row_threads + static_cast<int>(threadIdx.x)];
  }
};

// The tensors of a forward and of a backward. A null pointer means that an input is absent or that
// an output is not wanted.
template <class T>
struct ForwardTensors {
  const T *x, *residual;
  T* y;
  std::uint8_t* mask;
  bool relu;
};
template <class T>
struct BackwardTensors {
  const T *dy, *x;
  const std::uint8_t* mask;
  T *masked_dy, *dx;
};

// Loads the calling thread's vectors of x, stores them in shared memory and adds them to `sums`.
template <class T>
__device__ void hold_rows(Held<T>& held, const PersistentPlan& plan,
                          RowIterator<full_width<T>> rows, const T* x,
                          ShiftedSums<Accumulate<T>, full_width<T>, true>& sums) {
  constexpr int V = full_width<T>, U = 4;
  const int count = static_cast<int>(rows.count);
  for (int i = 0; i < count; i += U) {
    Pack<T, V> packs[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u < count) packs[u] = load<T, V>(x, rows.span()), rows.next();
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u < count) {
        held.at(0, i + u, plan) = packs[u];
        sums.add(packs[u], Span{0, 0, V});
      }
    sums.end_batch();
  }
}

// Writes the output of the vectors in shared memory, and the mask if there is one.
template <class T, bool add>
__device__ void apply_held(Held<T>& held, const PersistentPlan& plan,
                           RowIterator<full_width<T>> rows, const ForwardTensors<T>& tensors) {
  constexpr int V = full_width<T>, U = 4;
  using A = Accumulate<T>;
  const int count = static_cast<int>(rows.count);
  const Affine<A, V> f(held.channels, plan.across * V, plan.across);
  for (int i = 0; i < count; i += U) {
    Pack<T, V> residuals[U];
    Span spans[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u < count) {
        spans[u] = rows.span();
        if constexpr (add) residuals[u] = load<T, V>(tensors.residual, spans[u]);
        rows.next();
      }
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u < count) {
        const Pack<T, V> pack = held.at(0, i + u, plan);
        A result[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
          A z = (pack[v] - f.center[v]) * f.scale[v] + f.shift[v];
          if constexpr (add) z += residuals[u][v];
          result[v] = tensors.relu && z < A(0) ? A(0) : z;
        }
        const auto output = Pack<T, V>::of(result);
        store<T, V>(tensors.y, spans[u], output);
        if constexpr (add)
          if (tensors.mask != nullptr)
            tensors.mask[rows.byte(spans[u])] = mask_byte(output, spans[u]);
      }
  }
}

template <class T, bool add>
__global__ __launch_bounds__(row_threads,
                             1) void persistent_forward_kernel(ForwardTensors<T> tensors,
                                                               Values weight, Values bias,
                                                               Geometry g, PersistentPlan plan,
                                                               Partials partials, Statistics to) {
  constexpr int V = full_width<T>;
  using A = Accumulate<T>;
  Held<T> held(plan, 1);
  const int block = static_cast<int>(blockIdx.x), team = block / plan.members,
            member = block % plan.members;
  const int width = plan.across * V;
  const std::int64_t channel = static_cast<std::int64_t>(team) * width;
  const Counters before = read_counters(to);
  const RowIterator<V> rows(g, team, member, plan.members, false);
  ShiftedSums<A, V, true> sums;
  hold_rows(held, plan, rows, tensors.x, sums);
  double n;
  ChannelMoments moments[V];
  block_moments(sums, plan.across, plan.down, held.scratch, n, moments);
  if (static_cast<int>(threadIdx.x) < plan.across)
    for (int k = 0; k < V; ++k)
      partials.values[static_cast<std::int64_t>(block) * width + static_cast<int>(threadIdx.x) * V +
                      k] = {moments[k].mean, moments[k].m2};
  if (threadIdx.x == 0) partials.counts[block] = n;
  cooperative_groups::this_grid().sync();

  const std::int64_t first = static_cast<std::int64_t>(team) * plan.members;
  merge_chunks(partials.values + first * width, partials.counts + first, plan.members, width, 0,
               width, held.scratch, [&](std::int64_t c, double of_n, ChannelMoments of) {
                 if (channel + c >= g.channels) return;
                 if (member == 0) put_statistics(to, before, channel + c, of_n, of);
                 A values[3];
                 put_output_coefficients(of.mean,
                                         rstd_of(of_n > 0 ? of.m2 * (1 / of_n) : 0, to.eps),
                                         weight[channel + c], bias[channel + c], values);
                 for (int f = 0; f < 3; ++f) held.channels[f * width + c] = values[f];
               });
  __syncthreads();
  if (rows.count > 0) apply_held<T, add>(held, plan, rows, tensors);
  // Every block has read the counters before the grid-wide wait.
  if (block == 0 && threadIdx.x == 0) put_counters(to, before, static_cast<double>(g.outer));
}

// Loads the calling thread's vectors of dy and x, stores x and the gradient below the ReLU in
// shared memory, adds them to `sums`, and writes the gradient below the ReLU if the caller wants
// it.
template <class T, bool from_mask>
__device__ void hold_gradient(Held<T>& held, const PersistentPlan& plan,
                              RowIterator<full_width<T>> rows, const BackwardTensors<T>& tensors,
                              GradRules rules, GradSums<Accumulate<T>, full_width<T>, true>& sums) {
  constexpr int V = full_width<T>, U = 3;
  using A = Accumulate<T>;
  const int count = static_cast<int>(rows.count);
  const Affine<A, V> f(held.channels, plan.across * V, plan.across);
  for (int i = 0; i < count; i += U) {
    Pack<T, V> gradients[U], packs[U];
    unsigned passed[U];
    Span spans[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u < count) {
        spans[u] = rows.span();
        gradients[u] = load<T, V>(tensors.dy, spans[u]);
        packs[u] = load<T, V>(tensors.x, spans[u]);
        passed[u] = from_mask ? tensors.mask[rows.byte(spans[u])] : 0;
        rows.next();
      }
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u < count) {
        A result[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const A x_v = packs[u][v];
          result[v] = masked_gradient<from_mask>(gradients[u][v], x_v, passed[u], v, f.center[v],
                                                 f.scale[v], f.shift[v], rules.relu);
          sums.add(v, result[v], x_v - f.center[v], rules.weighted);
        }
        sums.end_vector();
        // The conversion is exact, because each element is an element of dy or 0.
        const Pack<T, V> g_pack = Pack<T, V>::of(result);
        held.at(0, i + u, plan) = g_pack;
        held.at(1, i + u, plan) = packs[u];
        if (tensors.masked_dy != nullptr) store<T, V>(tensors.masked_dy, spans[u], g_pack);
      }
  }
}

// Writes dx of the vectors in shared memory.
template <class T>
__device__ void apply_held_gradient(Held<T>& held, const PersistentPlan& plan,
                                    RowIterator<full_width<T>> rows, T* dx) {
  constexpr int V = full_width<T>;
  using A = Accumulate<T>;
  const int count = static_cast<int>(rows.count), width = plan.across * V;
  A center[V];
  take(center, held.channels, 0, width, plan.across);
  const GradAffine<A, V> d(held.channels, width, plan.across);
  for (int i = 0; i < count; ++i) {
    const Pack<T, V> g_pack = held.at(0, i, plan), x_pack = held.at(1, i, plan);
    A result[V];
#pragma unroll
    for (int v = 0; v < V; ++v)
      result[v] = d.a[v] * g_pack[v] + (d.b[v] * (x_pack[v] - center[v]) + d.c[v]);
    store<T, V>(dx, rows.span(), Pack<T, V>::of(result));
    rows.next();
  }
}

template <class T, bool from_mask>
__global__ __launch_bounds__(row_threads, 1) void persistent_backward_kernel(
    BackwardTensors<T> tensors, Channels of, GradRules rules, Geometry g, PersistentPlan plan,
    Partials partials, GradTargets to, const double* moments, double floor) {
  constexpr int V = full_width<T>;
  using A = Accumulate<T>;
  Held<T> held(plan, 2);
  const int block = static_cast<int>(blockIdx.x), team = block / plan.members,
            member = block % plan.members;
  const int width = plan.across * V, x_thread = static_cast<int>(threadIdx.x) % plan.across;
  const int y_thread = static_cast<int>(threadIdx.x) / plan.across;
  const std::int64_t channel = static_cast<std::int64_t>(team) * width;
  share_channels<3>(held.channels, channel, width, g.channels, [&](std::int64_t c, A* values) {
    put_output_coefficients(of.mean[c], of.rstd[c], of.weight[c], of.bias[c], values);
  });
  const RowIterator<V> rows(g, team, member, plan.members, false);
  GradSums<A, V, true> sums;
  if (rows.count > 0) hold_gradient<T, from_mask>(held, plan, rows, tensors, rules, sums);
  sums.fold();
  sum_down(sums.totals, x_thread, y_thread, plan.across, plan.down, held.scratch);
  if (y_thread == 0)
    for (int k = 0; k < V; ++k)
      partials.values[static_cast<std::int64_t>(block) * width + x_thread * V + k] = {
          sums.totals[k], sums.totals[V + k]};
  cooperative_groups::this_grid().sync();

  sum_chunks(partials.values + static_cast<std::int64_t>(team) * plan.members * width, plan.members,
             width, 0, width, held.scratch, [&](std::int64_t c, double first, double second) {
               const std::int64_t at = channel + c;
               if (at >= g.channels) return;
               if (member == 0) put_grad_sums<A>(to, at, first, second);
               const double mean = of.mean[at];
               second = around_mean(second, first, mean, static_cast<double>(static_cast<A>(mean)));
               A values[3];
               put_gradient_coefficients(
                   mean, of.rstd[at], of.weight[at], moments[0], {first, second},
                   moments[packet_header_size + g.channels + at], floor, values);
               for (int f = 0; f < 3; ++f) held.channels[(3 + f) * width + c] = values[f];
             });
  __syncthreads();
  if (rows.count > 0) apply_held_gradient(held, plan, rows, tensors.dx);
}

// ---- Host side.

template <class T>
T* at(const Tensor& t) {
  return t.defined() ? static_cast<T*>(t.raw()) : nullptr;
}

// Returns the plan of `kernel`, which keeps `tensors` tensors like x in shared memory.
template <class T, class Kernel>
PersistentPlan plan_of(const char* op, Kernel kernel, const Tensor& x, int tensors) {
  const int device = x.device().index();
  const tutti::cuda::Properties& properties = tutti::cuda::properties(device);
  const int blocks = tutti::cuda::blocks_per_multiprocessor(op, kernel, row_threads,
                                                            properties.shared_bytes_per_block);
  return persistent_plan({.rows = x.numel() / x.size(1),
                          .channels = x.size(1),
                          .lanes = full_width<T>,
                          .count = tensors},
                         {.multiprocessors = properties.multiprocessors,
                          .shared_bytes_per_block = properties.shared_bytes_per_block,
                          .holds_block = blocks > 0,
                          .runs_collectives = tutti::cuda::runs_collectives(device)});
}

template <class T>
Geometry geometry_of(const Tensor& x, const PersistentPlan& plan) {
  Geometry g;
  g.channels = x.size(1);
  g.vectors = g.channels / full_width<T>;
  g.outer = x.numel() / g.channels;
  g.across = plan.across;
  g.down = plan.down;
  return g;
}

template <class T>
Workspace workspace_of(const Tensor& x, const PersistentPlan& plan) {
  const auto blocks = static_cast<std::int64_t>(plan.blocks());
  return Workspace(x.device(), blocks * plan.across * full_width<T>, blocks);
}

tutti::cuda::Grid grid_of(const PersistentPlan& plan) {
  return {.blocks = static_cast<unsigned>(plan.blocks()),
          .threads = row_threads,
          .shared_bytes = plan.shared_bytes,
          .cooperative = true};
}

// Calls launch.operator()<T>(), which returns whether it has launched a kernel, for x's type.
// Returns false if x has an unsuitable layout.
template <class Launch>
bool with_type(const Tensor& x, bool aligned, const Launch& launch) {
  if (!aligned || x.numel() == 0 || !is_rows(x)) return false;
  bool done = false;
  dispatch(TrainTypes{}, x.dtype(), "batch_norm",
           [&]<class H>() { done = launch.template operator()<DeviceType<H>>(); });
  return done;
}

}  // namespace

bool persistent_forward(const Tensor& x, const Statistics& statistics, const Normalization& to,
                        const Tensor& y) {
  constexpr const char* op = "batch_norm forward";
  const bool aligned = is_aligned(x) && is_aligned(y) && is_aligned(to.residual);
  return with_type(x, aligned, [&]<class T>() {
    const auto kernel = to.residual.defined() ? persistent_forward_kernel<T, true>
                                              : persistent_forward_kernel<T, false>;
    const PersistentPlan plan = plan_of<T>(op, kernel, x, 1);
    if (plan.teams == 0) return false;
    const Workspace workspace = workspace_of<T>(x, plan);
    tutti::cuda::launch(
        op, kernel, grid_of(plan),
        ForwardTensors<T>{at<T>(x), at<T>(to.residual), at<T>(y), mask_of(to), to.relu},
        values_of(to.weight, 1), values_of(to.bias, 0), geometry_of<T>(x, plan), plan,
        workspace.partials(), statistics);
    return true;
  });
}

bool persistent_backward(const LocalBackward& arguments) {
  const auto& [dy, saved, moments, position_weights, eps, sums, masked_dy, weight_grad, bias_grad,
               dx] = arguments;
  constexpr const char* op = "batch_norm backward";
  const Normalization& n = saved.normalization;
  const bool from_mask = n.relu && n.residual.defined();
  const bool aligned = is_aligned(dy) && is_aligned(saved.x) && is_aligned(masked_dy) &&
                       is_aligned(dx);
  return with_type(saved.x, aligned, [&]<class T>() {
    const auto kernel = from_mask ? persistent_backward_kernel<T, true>
                                  : persistent_backward_kernel<T, false>;
    const PersistentPlan plan = plan_of<T>(op, kernel, saved.x, 2);
    if (plan.teams == 0) return false;
    const Workspace workspace = workspace_of<T>(dy, plan);
    const GradTargets to{saved.x.size(1),
                         sums.data<double>(),
                         n.mean.data<double>(),
                         n.rstd.data<double>(),
                         target_of(weight_grad),
                         target_of(bias_grad),
                         {}};
    tutti::cuda::launch(
        op, kernel, grid_of(plan),
        BackwardTensors<T>{at<T>(dy), at<T>(saved.x), mask_of(n), at<T>(masked_dy), at<T>(dx)},
        channels_of(n), GradRules{n.relu, saved.weighted}, geometry_of<T>(saved.x, plan), plan,
        workspace.partials(), to, moments.data<double>(), gradient_floor(eps));
    return true;
  });
}

}  // namespace tutti::kernels::cuda
