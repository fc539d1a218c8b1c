#include "module_list.h"

namespace tutti::nn {

ModuleList::ModuleList(std::initializer_list<std::shared_ptr<Module>> modules) {
  for (const auto& module : modules) append_module(module);
}

}  // namespace tutti::nn
