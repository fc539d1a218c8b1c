#include "onednn_primitive.h"

#include <cstdlib>
#include <new>
#include <optional>
#include <unordered_map>

namespace tutti::kernels::cpu::onednn {
namespace {

dnnl::stream& stream() {
  thread_local dnnl::stream own(engine());
  return own;
}

// Returns memory for reordered weights and for oneDNN's scratchpads. Each thread has one allocation
// that all of its calls reuse, so that ranks that run as threads do not share it.
void* scratch_memory(std::size_t bytes) {
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
    if (!own.data) {
      own.size = 0;
      throw std::bad_alloc();
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
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
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

void OnednnPrimitive::run(std::initializer_list<void*> pointers) {
  // One scratchpad serves the reorders and the primitive in turn: nothing in it outlives a call.
  const std::size_t bytes = bytes_ + scratchpad_bytes_;
  char* scratch = bytes > 0 ? static_cast<char*>(scratch_memory(bytes)) : nullptr;
  const memory scratchpad(scratchpad_, engine(), scratch ? scratch + bytes_ : nullptr);
  std::unordered_map<int, memory> memories{{DNNL_ARG_SCRATCHPAD, scratchpad}};
  auto pointer = pointers.begin();
  for (Argument& argument : arguments_) {
    argument.given.set_data_handle(*pointer++);
    if (argument.wanted) {
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
}

void OnednnPrimitive::reserve_scratchpad(const Desc& desc) {
  if (desc.get_size() <= scratchpad_bytes_) return;
  scratchpad_ = desc;
  scratchpad_bytes_ = desc.get_size();
}

bool run_cached(const char* op, const PrimitiveKey& key, std::initializer_list<void*> pointers,
                const std::function<void(OnednnPrimitive&)>& build) {
  // An entry without a value means that oneDNN has no such primitive.
  thread_local std::unordered_map<std::string, std::optional<OnednnPrimitive>> cache;
  // The limit bounds the memory of a program that keeps using new shapes. Creating a primitive
  // again is cheap.
  constexpr std::size_t max_primitives = 1024;
  try {
    auto found = cache.find(key.text());
    if (found == cache.end()) {
      if (cache.size() >= max_primitives) cache.clear();
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
    found->second->run(pointers);
    return true;
  } catch (const dnnl::error& error) {
    fail<Error>("{}: oneDNN failed with status {} ({})", op, static_cast<int>(error.status),
                error.what());
  }
}

}  // namespace tutti::kernels::cpu::onednn
