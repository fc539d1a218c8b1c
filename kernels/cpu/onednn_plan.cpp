#include "onednn_plan.h"

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

// Memory for reordered weights and oneDNN's scratchpads: one block per thread, reused by every
// call, so that ranks which are threads never share one.
void* scratch(std::size_t bytes) {
  struct Block {
    void* data = nullptr;
    std::size_t size = 0;
    ~Block() { std::free(data); }
  };
  thread_local Block block;
  if (bytes > block.size) {
    std::free(block.data);
    block.size = (bytes + 63) / 64 * 64;
    block.data = std::aligned_alloc(64, block.size);
    if (!block.data) {
      block.size = 0;
      throw std::bad_alloc();
    }
  }
  return block.data;
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

void Plan::add(int argument, Direction direction, const Desc& given, const Desc& wanted) {
  Operand operand{argument, direction, memory(given, engine(), nullptr), {}, {}, 0};
  if (given != wanted) {
    operand.inner = memory(wanted, engine(), nullptr);
    const bool in = direction == Direction::in;
    const dnnl::reorder::primitive_desc desc(engine(), in ? given : wanted, engine(),
                                             in ? wanted : given, attributes());
    operand.reorder = dnnl::reorder(desc);
    operand.offset = bytes_;
    bytes_ += (wanted.get_size() + 63) / 64 * 64;
    reserve_scratchpad(desc.scratchpad_desc());
  }
  operands_.push_back(std::move(operand));
}

void Plan::run(std::initializer_list<void*> pointers) {
  // One scratchpad serves the reorders and the primitive in turn: nothing in it outlives a call.
  char* block = bytes_ + scratchpad_bytes_ > 0
                    ? static_cast<char*>(scratch(bytes_ + scratchpad_bytes_))
                    : nullptr;
  const memory scratchpad(scratchpad_, engine(), block ? block + bytes_ : nullptr);
  std::unordered_map<int, memory> arguments{{DNNL_ARG_SCRATCHPAD, scratchpad}};
  auto pointer = pointers.begin();
  for (Operand& operand : operands_) {
    operand.outer.set_data_handle(*pointer++);
    if (operand.inner) {
      operand.inner.set_data_handle(block + operand.offset);
      if (operand.direction == Direction::in)
        run_reorder(operand.reorder, operand.outer, operand.inner, scratchpad);
    }
    arguments.emplace(operand.argument, operand.inner ? operand.inner : operand.outer);
  }
  primitive_.execute(stream(), arguments);
  for (const Operand& operand : operands_)
    if (operand.inner && operand.direction == Direction::out)
      run_reorder(operand.reorder, operand.inner, operand.outer, scratchpad);
}

void Plan::reserve_scratchpad(const Desc& desc) {
  if (desc.get_size() <= scratchpad_bytes_) return;
  scratchpad_ = desc;
  scratchpad_bytes_ = desc.get_size();
}

bool run(const char* op, const Key& key, std::initializer_list<void*> pointers,
         const std::function<void(Plan&)>& build) {
  thread_local std::unordered_map<std::string, std::optional<Plan>> plans;
  constexpr std::size_t most =
      1024;  // a program of ever new shapes must not grow for ever; remaking is cheap
  try {
    auto found = plans.find(key.text());
    if (found == plans.end()) {
      if (plans.size() >= most) plans.clear();
      std::optional<Plan> plan(std::in_place);
      try {
        build(*plan);
      } catch (const dnnl::error& error) {
        if (error.status != dnnl_unimplemented) throw;
        plan.reset();
      }
      found = plans.emplace(key.text(), std::move(plan)).first;
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
