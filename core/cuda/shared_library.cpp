#include "shared_library.h"

#include "../error.h"

#include <dlfcn.h>

#include <utility>

namespace tutti::cuda {

SharedLibrary::SharedLibrary(std::string name, std::string file, const std::string& folder)
    : name_(std::move(name)), file_(std::move(file)) {
  std::string tried;
  for (const std::string& path : {file_, folder + "/" + file_}) {
    if (path != file_ && folder.empty()) continue;
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) return;
    const char* why = dlerror();
    tried += (tried.empty() ? "" : "; ") + std::string(why ? why : path);
  }
  fail<DeviceError>(
      "{} could not be loaded ({}): install {} or add its folder to LD_LIBRARY_PATH, or compute on "
      "Device::cpu()",
      name_, tried, file_);
}

void* SharedLibrary::find(const char* function) const {
  if (void* address = dlsym(handle_, function)) return address;
  fail<DeviceError>("{} has no function {} in the {} that was loaded: install a later version",
                    name_, function, file_);
}

}  // namespace tutti::cuda
