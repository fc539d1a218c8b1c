#include "onednn_primitive.h"

#include "../../core/memory.h"
#include "../../core/parallel.h"
#include "../../core/signal_stack.h"
#include "../../core/thread_owned.h"
#include "onednn_exit.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

namespace tutti::kernels::cpu::onednn {
namespace {

// Streams have no state on the CPU. Never destroyed, like the engine.
const dnnl::stream& stream() {
  static const auto& all = *new dnnl::stream(engine());
  return all;
}

// oneDNN compiles code when it creates a primitive and, for its GEMM, in the first call. Version
// 2.6.3 writes to address 0 where it gets no memory for code. All of GEMM's code takes 12 MiB, and
// no primitive of a convolutional network was seen to take more.
constexpr std::size_t code_bytes = std::size_t{32} << 20;

std::size_t in_cache_lines(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

[[noreturn]] void fail_without_memory(const char* op, std::size_t bytes) {
  const MemoryStats stats = allocator(Device::cpu()).stats();
  fail<OutOfMemoryError>(
      "{}: out of memory on cpu: oneDNN asked for {} bytes while {} bytes are live and {} are "
      "cached; make the batch or the model smaller, or raise the limit of this process",
      op, bytes, stats.live, stats.cached);
}

// Throws an Error unless the system has `bytes` more for this process, which oneDNN will allocate
// itself. The check maps memory and returns it unused.
void expect_memory(const char* op, std::size_t bytes) {
  const auto is_available = [bytes] {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED && munmap(memory, bytes) == 0;
  };
  if (is_available()) return;
  allocator(Device::cpu()).trim();  // The cache may hold the memory that the system lacks.
  if (!is_available()) fail_without_memory(op, bytes);
}

// Memory that all calls of a thread reuse, so that ranks that run as threads do not share it.
class ScratchMemory {
 public:
  ~ScratchMemory() { std::free(data_); }
  char* get(const char* op, std::size_t bytes) {
    if (bytes <= size_) return data_;
    std::free(data_);
    size_ = in_cache_lines(bytes);
    data_ = allocate();
    if (!data_) {  // The cache may hold the memory that the system lacks.
      allocator(Device::cpu()).trim();
      data_ = allocate();
    }
    if (data_) return data_;
    size_ = 0;
    fail_without_memory(op, bytes);
  }

 private:
  char* allocate() const { return static_cast<char*>(std::aligned_alloc(64, size_)); }

  char* data_ = nullptr;
  std::size_t size_ = 0;
};

// The layout in PackedWeights of a part of a weight.
struct PackedPart {
  std::int64_t offset;
  Desc layout;
  bool operator==(const PackedPart& other) const {
    return offset == other.offset && layout == other.layout;
  }
};

// Whether a primitive writes the argument.
bool is_result(int id) {
  return id == DNNL_ARG_DST || id == DNNL_ARG_DIFF_SRC || id == DNNL_ARG_DIFF_WEIGHTS ||
         id == DNNL_ARG_DIFF_BIAS;
}

}  // namespace

const dnnl::engine& engine() {
  // Never destroyed: threads may compute while the process exits.
  static const auto& cpu = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

void Plan::add(int id, const Operand& given, const Desc& wanted) {
  Call& call = shares_.back().back();
  Argument argument{id, given, memory(given.desc, engine(), nullptr), {}, {}};
  if (given.desc == wanted) {
    call.memories.emplace(id, argument.own);
  } else if (id == DNNL_ARG_WEIGHTS) {
    argument.weight = number_of_weight(given, wanted);
    call.memories.emplace(id, memory(wanted, engine(), nullptr));
  } else {
    const bool in = !is_result(id);
    argument.conversion = convert(in ? given.desc : wanted, in ? wanted : given.desc, call.bytes);
    Memories& memories = argument.conversion->memories;
    argument.own = memories.at(in ? DNNL_ARG_FROM : DNNL_ARG_TO);
    call.memories.emplace(id, memories.at(in ? DNNL_ARG_TO : DNNL_ARG_FROM));
    call.bytes += in_cache_lines(wanted.get_size());
    share_bytes_ = std::max(share_bytes_, call.bytes);
  }
  call.arguments.push_back(std::move(argument));
}

Plan::Conversion Plan::convert(const Desc& from, const Desc& to, std::size_t offset) {
  const dnnl::reorder::primitive_desc desc(engine(), from, engine(), to, attributes());
  Conversion conversion{dnnl::reorder(desc),
                        {{DNNL_ARG_FROM, memory(from, engine(), nullptr)},
                         {DNNL_ARG_TO, memory(to, engine(), nullptr)}},
                        offset};
  add_scratchpad(conversion.memories, desc.scratchpad_desc());
  return conversion;
}

std::size_t Plan::number_of_weight(const Operand& given, const Desc& wanted) {
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (const Weight& other = weights_[i]; other.given.offset == given.offset &&
                                           other.given.desc == given.desc && other.wanted == wanted)
      return i;
  weights_.push_back({given, wanted, convert(given.desc, wanted, common_bytes_), {}});
  common_bytes_ += in_cache_lines(wanted.get_size());
  return weights_.size() - 1;
}

void Plan::add_scratchpad(Memories& memories, const Desc& desc) {
  memories.emplace(DNNL_ARG_SCRATCHPAD, memory(desc, engine(), nullptr));
  scratchpad_bytes_ = std::max(scratchpad_bytes_, in_cache_lines(desc.get_size()));
}

void Plan::add_sum(std::size_t tensor, std::int64_t elements, DType dtype, std::int64_t copies) {
  sums_.push_back({tensor, elements, copies, dtype, common_bytes_});
  common_bytes_ += in_cache_lines(static_cast<std::size_t>(copies * elements) * sizeof(float));
}

void* Plan::address(const Operand& operand, const Addresses& addresses) const {
  if (!operand.copy) {
    char* const data = static_cast<char*>(addresses.pointers[operand.tensor]);
    return data ? data + operand.offset : nullptr;
  }
  const auto sum = std::ranges::find(sums_, operand.tensor, &Sum::tensor);
  return addresses.scratch + sum->offset + operand.offset +
         *operand.copy * sum->elements * static_cast<std::int64_t>(sizeof(float));
}

void Plan::convert_weights(const Addresses& addresses, PackedWeights* packed) {
  const auto convert = [&](Weight& weight, void* to, char* scratchpad) {
    Memories& memories = weight.conversion.memories;
    memories.at(DNNL_ARG_FROM).set_data_handle(address(weight.given, addresses));
    memories.at(DNNL_ARG_TO).set_data_handle(to);
    memories.at(DNNL_ARG_SCRATCHPAD).set_data_handle(scratchpad);
    weight.conversion.reorder.execute(stream(), memories);
  };
  char* const scratchpads = addresses.scratch + common_bytes_;
  for (Weight& weight : weights_) {
    weight.data = addresses.scratch + weight.conversion.offset;
    if (!packed) continue;
    weight.packed = packed->find(PackedPart{weight.given.offset, weight.wanted}, [&] {
      auto copy = std::make_shared<Storage>(weight.wanted.get_size(), Device::cpu());
      convert(weight, copy->data(), scratchpads);
      return copy;
    });
    weight.data = weight.packed->data();
  }
  if (packed) return;
  parallel_for(std::ssize(weights_), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      convert(weights_[i], weights_[i].data, scratchpads + i * scratchpad_bytes_);
  });
}

void Plan::run_call(Call& call, const Addresses& addresses, char* scratch) {
  char* const scratchpad = scratch + share_bytes_;
  call.memories.at(DNNL_ARG_SCRATCHPAD).set_data_handle(scratchpad);
  for (Argument& argument : call.arguments) {
    argument.own.set_data_handle(address(argument.given, addresses));
    if (argument.weight)
      call.memories.at(argument.id).set_data_handle(weights_[*argument.weight].data);
    if (!argument.conversion) continue;
    Conversion& conversion = *argument.conversion;
    call.memories.at(argument.id).set_data_handle(scratch + conversion.offset);
    conversion.memories.at(DNNL_ARG_SCRATCHPAD).set_data_handle(scratchpad);
    if (!is_result(argument.id)) conversion.reorder.execute(stream(), conversion.memories);
  }
  call.primitive.execute(stream(), call.memories);
  for (Argument& argument : call.arguments)
    if (argument.conversion && is_result(argument.id))
      argument.conversion->reorder.execute(stream(), argument.conversion->memories);
}

void Plan::add_copies(const Sum& sum, const Addresses& addresses) const {
  const auto* const from = reinterpret_cast<const float*>(addresses.scratch + sum.offset);
  dispatch(Types<float, BFloat16>{}, sum.dtype, "sum of gradients", [&]<class T>() {
    T* const to = static_cast<T*>(addresses.pointers[sum.tensor]);
    parallel_for(sum.elements, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        float total = from[i];
        for (std::int64_t copy = 1; copy < sum.copies; ++copy)
          total += from[copy * sum.elements + i];
        to[i] = T(total);
      }
    });
  });
}

void Plan::run(const char* op, std::initializer_list<void*> pointers, PackedWeights* packed) {
  if (!has_run_) expect_memory(op, code_bytes);
  const std::size_t of_share = share_bytes_ + scratchpad_bytes_,
                    bytes = common_bytes_ + shares_.size() * of_share +
                            weights_.size() * scratchpad_bytes_;
  const Addresses addresses{pointers.begin(),
                            tutti::detail::of_thread<ScratchMemory>().get(op, bytes)};
  convert_weights(addresses, packed);
  parallel_for(std::ssize(shares_), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      for (Call& call : shares_[i])
        run_call(call, addresses, addresses.scratch + common_bytes_ + i * of_share);
  });
  for (const Sum& sum : sums_) add_copies(sum, addresses);
  for (Weight& weight : weights_) weight.packed.reset();
  has_run_ = true;
}

namespace {

// Returns the plan of a call, or nothing where oneDNN has no kernel. oneDNN has fast kernels only
// where their scratch memory is small beside the tensors, and a share of some has a smaller part of
// its tensors than of its scratch memory. One thread then computes the call faster.
std::optional<Plan> make_plan(const Build& build) {
  try {
    Plan plan;
    build(plan, num_threads());
    if (!plan.runs_reference() || num_threads() == 1) return plan;
    Plan whole;
    build(whole, 1);
    return whole.runs_reference() ? std::move(plan) : std::move(whole);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
    return {};
  }
}

}  // namespace

bool run_cached(const char* op, const PlanKey& key, std::initializer_list<void*> pointers,
                const Build& build, PackedWeights* packed) {
  // A plan without a value means that oneDNN has no kernel. The limit bounds the memory of a
  // program that keeps using new shapes: a call takes some 8 kB. On 64 threads ResNet-50 makes
  // 4,300 calls for an input size. To make a plan again is cheap.
  struct Plans {
    std::unordered_map<std::string, std::optional<Plan>> by_key;
    std::size_t calls = 0;
  };
  constexpr std::size_t max_calls = 16384;
  Plans& plans = tutti::detail::of_thread<Plans>();
  const detail::DenormalScope denormals;
  const detail::OneOpenMPThread one;
  try {
    auto found = plans.by_key.find(key.text());
    const bool is_new = found == plans.by_key.end();
    const CallBeforeExit call(op, key.text(),
                              is_new || (found->second && !found->second->has_run()));
    if (!call.may_compute()) return false;
    if (is_new) {
      SignalStack::of_thread();
      if (plans.calls > max_calls) plans = {};
      expect_memory(op, code_bytes);
      std::optional<Plan> plan = make_plan(build);
      plans.calls += plan ? plan->calls() : 1;
      found = plans.by_key.emplace(key.text(), std::move(plan)).first;
    }
    if (!found->second) return false;
    found->second->run(op, pointers, packed);
    return true;
  } catch (const std::bad_alloc&) {
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_out_of_memory)
      fail<Error>("{}: oneDNN failed with status {} ({})", op, static_cast<int>(error.status),
                  error.what());
  }
  fail<OutOfMemoryError>("{}: out of memory on cpu: oneDNN could not allocate its buffers", op);
}

}  // namespace tutti::kernels::cpu::onednn
