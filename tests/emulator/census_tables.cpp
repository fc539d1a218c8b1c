// The budgets of a step, and the tables of benchmarks/results/step_census.md.
#include "step_census.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace emulator::census {
namespace {

bool is_executed(const Row& row) { return is_launch(row.kind); }

bool is_norm(const Row& row) {
  for (const char* word : {"moments_kernel", "finalize_kernel", "apply_kernel",
                           "gradient_sums_kernel", "apply_grad_kernel"})
    if (row.name.starts_with(word)) return true;
  return false;
}

std::int64_t calls(const StepCensus& census, const std::function<bool(const Row&)>& fits) {
  std::int64_t sum = 0;
  for (const Row& row : census.rows) sum += fits(row) ? row.calls : 0;
  return sum;
}

std::int64_t calls_of(const StepCensus& census, const char* name) {
  return calls(census, [&](const Row& row) { return row.name == name; });
}

// ---- Tables.

struct Counted {
  std::int64_t images;
  StepCensus census;
};

Row row_of(const StepCensus& census, const Row& like) {
  for (const Row& row : census.rows)
    if (row.kind == like.kind && row.name == like.name) return row;
  return {};
}

std::string blocks_of(const Row& row) {
  if (row.kind != Kind::kernel || row.most_blocks == 0) return "";
  return row.fewest_blocks == row.most_blocks
             ? fmt::format("{}", row.most_blocks)
             : fmt::format("{} to {}", row.fewest_blocks, row.most_blocks);
}

std::string number_or_none(std::size_t number) {
  return number == 0 ? "" : fmt::format("{}", number);
}

// A sum over the rows that `fits` accepts.
template <class Field>
double sum(const StepCensus& census, const Field& field,
           const std::function<bool(const Row&)>& fits) {
  double total = 0;
  for (const Row& row : census.rows)
    if (fits(row)) total += row.*field;
  return total;
}

bool is_own_other(const Row& row) {
  return row.kind != Kind::convolution && row.kind != Kind::product && is_executed(row) &&
         !is_norm(row);
}
bool is_of_library(const Row& row) {
  return row.kind == Kind::convolution || row.kind == Kind::product;
}

std::string launches(const std::vector<Counted>& on_h100, const std::vector<Counted>& on_a100) {
  const StepCensus &small = on_h100.front().census, &large = on_h100.back().census,
                   &other = on_a100.back().census;
  std::string text =
      "\n**What a step launches**, on rank 0 of 2. Blocks, threads and shared memory are those of "
      "an "
      "H100 with 256 images.\n\n"
      "| launched in a step | times | blocks | threads of a block | bytes of shared memory | MB, "
      "32 images | MB, 256 images | ms, H100, 256 images | ms, A100, 256 images |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  const auto add = [&](const std::string& name, const Row& form, double calls, double mb,
                       double many_mb, double seconds, double other_seconds) {
    text += fmt::format("| {} | {:.0f} | {} | {} | {} | {:.1f} | {:.1f} | {:.3f} | {:.3f} |\n",
                        name, calls, blocks_of(form), number_or_none(form.threads),
                        number_or_none(form.shared_bytes), mb / 1e6, many_mb / 1e6, 1e3 * seconds,
                        1e3 * other_seconds);
  };
  for (const Row& row : large.rows) {
    if (!is_executed(row)) continue;
    add(row.name, row, static_cast<double>(row.calls), row_of(small, row).bytes, row.bytes,
        row.seconds, row_of(other, row).seconds);
  }
  add("together", {}, static_cast<double>(calls(large, is_executed)),
      sum(small, &Row::bytes, is_executed), sum(large, &Row::bytes, is_executed),
      sum(large, &Row::seconds, is_executed), sum(other, &Row::seconds, is_executed));
  return text;
}

std::string layers(const StepCensus& census) {
  std::string text =
      "\n**Which layers launch it.** There are 53 convolutions and 53 layers of SyncBatchNorm.\n\n"
      "| layers | launches, forward | backward |\n| --- | --- | --- |\n";
  for (const auto& [layer, launched] : census.by_layer)
    text += fmt::format("| {} | {} | {} |\n", layer, launched.forward, launched.backward);
  return text;
}

// The calls whose number is the same in every run: polls and releases on other threads differ.
std::string calls_of_runtime(const StepCensus& census) {
  std::string text =
      "\n**What else it calls.** Polls of events and releases of memory depend on the time and are "
      "left out.\n\n| call in a step | times | MB |\n| --- | --- | --- |\n";
  for (const Row& row : census.rows) {
    const bool differs = row.name == "cudaEventQuery" || row.name == "cudaEventDestroy" ||
                         row.name == "cudaFreeAsync" || row.name == "cudaHostAlloc";
    if (is_executed(row) || differs) continue;
    text += fmt::format("| {} | {} | {} |\n", row.name, row.calls,
                        row.bytes > 0 ? fmt::format("{:.1f}", row.bytes / 1e6) : "");
  }
  return text;
}

std::string batches(const std::vector<Counted>& on_h100, const std::vector<Counted>& on_a100) {
  std::string text =
      "\n**By batch**, rank 0 of 2. The memory is that of blocks of 1 MB and more, "
      "gradient buckets included, without cuDNN's workspaces.\n\n"
      "| images of a rank | launches | GB allocated at most | GB moved: batch norm | other "
      "kernels "
      "| cuDNN and cuBLASLt | ms, H100: batch norm | other kernels | cuDNN and cuBLASLt | together "
      "| ms, A100: batch norm | other kernels | cuDNN and cuBLASLt | together |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (std::size_t i = 0; i < on_h100.size(); ++i) {
    const StepCensus& census = on_h100[i].census;
    text += fmt::format("| {} | {} | {:.1f}", on_h100[i].images, calls(census, is_executed),
                        static_cast<double>(census.peak_bytes) / 1e9);
    for (const auto& group : {is_norm, is_own_other, is_of_library})
      text += fmt::format(" | {:.2f}", sum(census, &Row::bytes, group) / 1e9);
    for (const StepCensus* each : {&census, &on_a100[i].census})
      for (const auto& group : {is_norm, is_own_other, is_of_library, is_executed})
        text += fmt::format(" | {:.2f}", 1e3 * sum(*each, &Row::seconds, group));
    text += " |\n";
  }
  return text;
}

std::string compared_with_torch(const std::vector<Counted>& counted) {
  std::string text =
      "\n**Normalisation against PyTorch's kernels**: 53 layers with their ReLU and the sum with "
      "the residual, forward and backward. Here 15 of them also add the two gradients of their "
      "output, for which PyTorch has kernels that do not count here.\n\n"
      "| images of a rank | GB, tutti | GB, PyTorch | ms, H100, tutti | PyTorch | ms, A100, "
      "tutti "
      "| PyTorch |\n| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const auto& [images, census] : counted) {
    const double own = sum(census, &Row::bytes, is_norm), of_torch = census.torch_norm_bytes;
    text += fmt::format("| {} | {:.2f} | {:.2f}", images, own / 1e9, of_torch / 1e9);
    for (const DeviceModel* device : {&h100, &a100})
      for (const double bytes : {own, of_torch})
        text += fmt::format(" | {:.2f}", 1e3 * bytes / device->bytes_per_second);
    text += " |\n";
  }
  return text;
}

std::string recomputed(const std::vector<Counted>& kept, const std::vector<Counted>& again) {
  std::string text =
      "\n**With recompute_output** (docs/batch_norm.md), rank 0 of 2 on an H100.\n\n"
      "| images of a rank | launches, without and with | GB moved | GB allocated at most |\n"
      "| --- | --- | --- | --- |\n";
  for (std::size_t i = 0; i < again.size(); ++i) {
    const StepCensus &without = kept[i].census, &with = again[i].census;
    text += fmt::format(
        "| {} | {}, {} | {:.2f}, {:.2f} | {:.2f}, {:.2f} |\n", again[i].images,
        calls(without, is_executed), calls(with, is_executed),
        sum(without, &Row::bytes, is_executed) / 1e9, sum(with, &Row::bytes, is_executed) / 1e9,
        static_cast<double>(without.peak_bytes) / 1e9, static_cast<double>(with.peak_bytes) / 1e9);
  }
  return text;
}

std::string alone(const std::vector<std::pair<std::string, std::vector<Counted>>>& devices) {
  std::string text =
      "\n**A rank alone**\n\n| device, one rank | images | launches |\n| --- | --- | --- |\n";
  for (const auto& [device, counted] : devices)
    for (const auto& [images, census] : counted)
      text += fmt::format("| {} | {} | {} |\n", device, images, calls(census, is_executed));
  return text + "\n";
}

}  // namespace

std::vector<Budget> budgets(const StepCensus& census) {
  const auto of = [&](const char* name) { return calls_of(census, name); };
  const auto megabytes = [&](const auto& fits) {
    return static_cast<std::int64_t>(sum(census, &Row::bytes, fits) / 1e6);
  };
  const auto launched = [&](const char* layers) {
    const auto found = census.by_layer.find(layers);
    return found == census.by_layer.end() ? 0 : found->second.forward + found->second.backward;
  };
  return {
      {"launches of a step", 427, calls(census, is_executed)},
      {"kernels of the 53 layers of SyncBatchNorm", 4 * 53, calls(census, is_norm)},
      {"launches of the 53 layers of SyncBatchNorm", 4 * 53, launched("SyncBatchNorm")},
      {"launches of the 53 convolutions", 162, launched("convolution")},
      {"MB that batch norm moves", 6787, megabytes(is_norm)},
      {"MB that the optimizer moves", 562,
       megabytes([](const Row& r) { return r.name == "step_kernel"; })},
      {"copies to the host", 0, of("copy to the host")},
      {"copies on the device", 0, of("copy on the device")},
      {"fills", 1, of("cudaMemsetAsync")},
      {"casts", 5, of("convert_kernel")},
      {"elementwise kernels of two operands", 5, of("binary_kernel")},
      {"sums of gradients and metrics", 19, of("axpy_kernel")},
      {"launches of the optimizer", 5, of("step_kernel")},
      {"collectives", 111, calls(census, [](const Row& r) { return r.kind == Kind::collective; })},
      {"events recorded", 223, of("cudaEventRecord")},
      {"waits of streams", 227, of("cudaStreamWaitEvent")},
      {"allocations", 748, of("cudaMallocAsync")},
      {"waits of the host", 0,
       of("cudaStreamSynchronize") + of("cudaEventSynchronize") + of("cudaDeviceSynchronize")},
  };
}

std::string tables() {
  const auto at = [](const DeviceModel& device, int ranks, bool recompute_output = false) {
    std::vector<Counted> all;
    for (const std::int64_t images : {32, 64, 128, 256})
      all.push_back({images, count_step({&device, images, ranks, recompute_output})});
    return all;
  };
  const std::vector<Counted> on_h100 = at(h100, 2), on_a100 = at(a100, 2);
  return launches(on_h100, on_a100) + layers(on_h100.front().census) +
         calls_of_runtime(on_h100.front().census) + batches(on_h100, on_a100) +
         compared_with_torch(on_h100) + recomputed(on_h100, at(h100, 2, true)) +
         alone({{"H100", at(h100, 1)}, {"A100", at(a100, 1)}});
}

}  // namespace emulator::census
