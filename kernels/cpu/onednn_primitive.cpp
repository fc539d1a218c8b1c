#include "onednn_primitive.h"

#include "../../core/memory.h"
#include "../../core/parallel.h"
#include "../../core/signal_stack.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>

namespace tutti::kernels::cpu::onednn {
namespace {

// oneDNN keeps compiled code in objects of static duration, which the exit of the process destroys
// while other threads may compute. The handlers at exit run in the reverse order of what they were
// registered in, so each call that compiles what the process has not compiled before registers this
// one anew: other threads may end their calls, for a second at most, and begin no more.
std::atomic<int> calls{0};
std::atomic<bool> is_exiting{false};
thread_local bool exits = false;  // this thread ends the process

void end_calls() {
  exits = is_exiting = true;
  for (int i = 0; i < 1000 && calls > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// What the first call of a kind makes while the process exits would be destroyed before end_calls()
// runs. exit() ends the thread-local objects of its thread before it runs any handler: there the
// main thread waits for such calls, and lets no other begin.
std::atomic<int> first_calls{0};
std::atomic<bool> main_thread_ends{false};
struct WaitsForFirstCalls {
  ~WaitsForFirstCalls() {
    if (!tutti::detail::is_main_thread()) return;
    main_thread_ends = true;
    for (int i = 0; i < 1000 && first_calls > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};
thread_local const WaitsForFirstCalls waits_for_first_calls;
[[maybe_unused]] const auto* const of_main_thread = &waits_for_first_calls;

// Returns whether the process has not compiled for this key before. It keeps 1000 keys at most.
bool is_first_for_process(const std::string& key) {
  static auto& mutex = *new std::mutex;  // never destroyed, like the engine
  static auto& keys = *new std::unordered_set<std::string>;
  const std::lock_guard lock(mutex);
  return keys.size() < 1000 && keys.insert(key).second;
}

struct FirstCall {
  FirstCall() {
    ++first_calls;
    if (!main_thread_ends || tutti::detail::is_main_thread()) return;
    --first_calls;
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the process should end meanwhile
    ++first_calls;
  }
  ~FirstCall() { --first_calls; }
};

struct Call {
  explicit Call(const char* op) {
    ++calls;
    if (!is_exiting || exits) return;
    --calls;
    std::this_thread::sleep_for(std::chrono::seconds(10));  // the process should end meanwhile
    fail<Error>("{}: not computed, because the process is exiting", op);
  }
  ~Call() { --calls; }
};

dnnl::stream& stream() {
  thread_local dnnl::stream own(engine());
  return own;
}

// oneDNN compiles code when it creates a primitive and, for its GEMM, in the first call. Version
// 2.6.3 writes to address 0 where it gets no memory for code. All of GEMM's code takes 12 MiB, and
// no primitive of a convolutional network was seen to take more.
constexpr std::size_t code_bytes = std::size_t{32} << 20;
// Each thread of a GEMM allocates a buffer of at most 78 KiB. If a thread gets none, version 2.6.3
// leaves the others waiting for it.
constexpr std::size_t gemm_bytes_per_thread = std::size_t{128} << 10;

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

// Returns whether the system refuses memory to this process before it has used all that there is:
// it has a limit of address space or data, or the system counts what is mapped. The limits can
// change while the process runs.
bool can_be_refused_memory() {
  static const bool counts_mapped_memory = [] {
    int mode = 0;
    return std::ifstream("/proc/sys/vm/overcommit_memory") >> mode && mode == 2;
  }();
  const auto is_limited = [](auto resource) {
    rlimit limit{};
    return getrlimit(resource, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
  };
  return counts_mapped_memory || is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA);
}

// Returns memory for reordered weights and for oneDNN's scratchpads. Each thread has one allocation
// that all of its calls reuse, so that ranks that run as threads do not share it.
void* scratch_memory(const char* op, std::size_t bytes) {
  struct Allocation {
    void* data = nullptr;
    std::size_t size = 0;
    ~Allocation() { std::free(data); }
  };
  thread_local Allocation own;
  if (bytes > own.size) {
    std::free(own.data);
    own.size = (bytes + 63) / 64 * 64;
    own.data = std::aligned_alloc(64, own.size);
    if (!own.data) {  // The cache may hold the memory that the system lacks.
      allocator(Device::cpu()).trim();
      own.data = std::aligned_alloc(64, own.size);
    }
    if (!own.data) {
      own.size = 0;
      fail_without_memory(op, bytes);
    }
  }
  return own.data;
}

void run_reorder(const dnnl::reorder& reorder, const memory& from, const memory& to,
                 const memory& scratchpad) {
  reorder.execute(stream(),
                  {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratchpad}});
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

void OnednnPrimitive::add(int id, Direction direction, const Desc& given, const Desc& wanted) {
  Argument argument{id, direction, memory(given, engine(), nullptr), {}, {}, 0};
  if (given != wanted) {
    argument.wanted = memory(wanted, engine(), nullptr);
    const bool in = direction == Direction::in;
    const dnnl::reorder::primitive_desc desc(engine(), in ? given : wanted, engine(),
                                             in ? wanted : given, attributes());
    argument.reorder = dnnl::reorder(desc);
    argument.offset = bytes_;
    bytes_ += (wanted.get_size() + 63) / 64 * 64;
    reserve_scratchpad(desc.scratchpad_desc());
  }
  arguments_.push_back(std::move(argument));
}

void OnednnPrimitive::run(const char* op, std::initializer_list<void*> pointers,
                          PackedWeights* packed) {
  // One scratchpad serves the reorders and the primitive in turn: nothing in it outlives a call.
  const std::size_t bytes = bytes_ + scratchpad_bytes_;
  char* scratch = bytes > 0 ? static_cast<char*>(scratch_memory(op, bytes)) : nullptr;
  const memory scratchpad(scratchpad_, engine(), scratch ? scratch + bytes_ : nullptr);
  std::unordered_map<int, memory> memories{{DNNL_ARG_SCRATCHPAD, scratchpad}};
  if (!has_run_) expect_memory(op, code_bytes);
  else if (calls_gemm_ && can_be_refused_memory())
    expect_memory(op, static_cast<std::size_t>(num_threads()) * gemm_bytes_per_thread);
  std::shared_ptr<Storage> weights;
  auto pointer = pointers.begin();
  for (Argument& argument : arguments_) {
    argument.given.set_data_handle(*pointer++);
    if (argument.wanted && packed && argument.id == DNNL_ARG_WEIGHTS) {
      weights = packed->find(argument.wanted.get_desc(), [&] {
        auto copy = std::make_shared<Storage>(argument.wanted.get_desc().get_size(), Device::cpu());
        argument.wanted.set_data_handle(copy->data());
        run_reorder(argument.reorder, argument.given, argument.wanted, scratchpad);
        return copy;
      });
      argument.wanted.set_data_handle(weights->data());
    } else if (argument.wanted) {
      argument.wanted.set_data_handle(scratch + argument.offset);
      if (argument.direction == Direction::in)
        run_reorder(argument.reorder, argument.given, argument.wanted, scratchpad);
    }
    memories.emplace(argument.id, argument.wanted ? argument.wanted : argument.given);
  }
  primitive_.execute(stream(), memories);
  for (const Argument& argument : arguments_)
    if (argument.wanted && argument.direction == Direction::out)
      run_reorder(argument.reorder, argument.wanted, argument.given, scratchpad);
  has_run_ = true;
}

void OnednnPrimitive::reserve_scratchpad(const Desc& desc) {
  if (desc.get_size() <= scratchpad_bytes_) return;
  scratchpad_ = desc;
  scratchpad_bytes_ = desc.get_size();
}

bool run_cached(const char* op, const PrimitiveKey& key, std::initializer_list<void*> pointers,
                const std::function<void(OnednnPrimitive&)>& build, PackedWeights* packed) {
  // An entry without a value means that oneDNN has no such primitive.
  thread_local std::unordered_map<std::string, std::optional<OnednnPrimitive>> cache;
  SignalStack::of_thread();
  const detail::DenormalScope denormals;  // OpenMP's threads that start inherit it
  const detail::OpenMPThreads threads;    // oneDNN asks OpenMP
  // The limit bounds the memory of a program that keeps using new shapes. Creating a primitive
  // again is cheap.
  constexpr std::size_t max_primitives = 1024;
  try {
    auto found = cache.find(key.text());
    const bool compiles = found == cache.end();
    std::optional<FirstCall> first;
    if (compiles && is_first_for_process(key.text())) first.emplace();
    const Call call(op);
    if (compiles) {
      if (cache.size() >= max_primitives) cache.clear();
      expect_memory(op, code_bytes);
      std::optional<OnednnPrimitive> primitive(std::in_place);
      try {
        build(*primitive);
      } catch (const dnnl::error& error) {
        if (error.status != dnnl_unimplemented) throw;
        primitive.reset();
      }
      found = cache.emplace(key.text(), std::move(primitive)).first;
    }
    if (!found->second) return false;
    found->second->run(op, pointers, packed);
    if (first) std::atexit(end_calls);
    return true;
  } catch (const std::bad_alloc&) {
    fail<OutOfMemoryError>("{}: out of memory on cpu: oneDNN could not allocate its buffers", op);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory)
      fail<OutOfMemoryError>("{}: out of memory on cpu: oneDNN could not allocate its buffers", op);
    fail<Error>("{}: oneDNN failed with status {} ({})", op, static_cast<int>(error.status),
                error.what());
  }
}

}  // namespace tutti::kernels::cpu::onednn
