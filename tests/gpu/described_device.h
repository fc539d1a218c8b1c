// A device that cuDNN knows by its description alone, and the plans that cuDNN has for it, which
// need no GPU.
#pragma once

#include <tutti/kernels/cuda/cudnn_graph.h>

#include <fmt/format.h>

#include <stdexcept>

namespace tutti::test {

/// Returns the properties of an A100 (80), H100 (90) or B200 (100), in the JSON text that cuDNN
/// serialises them to.
inline kernels::cuda::cudnn::Descriptor described_device(int architecture) {
  struct Numbers {
    int architecture, multiprocessors, l2_bytes, shared_bytes;
    std::int64_t memory;
  };
  for (const Numbers& n : {Numbers{80, 108, 41943040, 166912, 85'000'000'000},
                           Numbers{90, 132, 52428800, 232448, 85'000'000'000},
                           Numbers{100, 148, 132644864, 232448, 192'000'000'000}}) {
    if (n.architecture != architecture) continue;
    const std::string json = fmt::format(
        R"({{"deviceId":0,"deviceName":"GPU","deviceVer":{}0,"driverVer":13000,"cudaDeviceId":0,)"
        R"("totalGlobalMem":{},"maxGridSize":[2147483647,65535,65535],)"
        R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":{},)"
        R"("smClockRateKHz":1410000,"memClockRateKHz":1593000,"l2CacheSize":{},"warpSize":32,)"
        R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
        R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"pciDeviceId":0,)"
        R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"isTccDriver":0,)"
        R"("supportCoopLaunch":1}})",
        architecture, n.memory, n.multiprocessors, n.l2_bytes, n.shared_bytes);
    kernels::cuda::cudnn::Descriptor result(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    result.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
               static_cast<std::int64_t>(json.size()), json.data());
    result.finalize();
    return result;
  }
  throw std::invalid_argument("described_device: expected 80, 90 or 100");
}

/// Returns the first `limit` plans for a problem, or all if there are fewer.
inline std::vector<kernels::cuda::cudnn::ExecutionPlan> find_execution_plans(
    const kernels::cuda::cudnn::ConvolutionProblem& problem,
    const kernels::cuda::cudnn::PlanTarget& target, std::size_t limit) {
  kernels::cuda::cudnn::PlanSearch search(problem, target);
  std::vector<kernels::cuda::cudnn::ExecutionPlan> plans;
  while (plans.size() < limit) {
    auto plan = search.next();
    if (!plan) break;
    plans.push_back(std::move(*plan));
  }
  return plans;
}

}  // namespace tutti::test
