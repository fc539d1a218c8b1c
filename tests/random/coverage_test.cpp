// Checks that the table of operations is complete: every function on tensors that the public
// headers declare, every member of Tensor that computes one, and every layer is compared with a
// reference. The declarations are read from the headers themselves.
#include "operation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

namespace tutti {
namespace {

namespace fs = std::filesystem;

const fs::path source = TUTTI_SOURCE_DIR;

// Returns a header in one line, without comments and preprocessor lines.
std::string declarations_of(const fs::path& header) {
  std::ifstream file(header);
  std::string text, line;
  while (std::getline(file, line)) {
    line = line.substr(0, line.find("//"));
    if (!line.starts_with('#')) text += line + ' ';
  }
  return std::regex_replace(text, std::regex("\\s+"), " ");
}

// Returns the type of a parameter, which may have a name and a default.
std::string type_of(std::string parameter) {
  parameter = parameter.substr(0, parameter.find('='));
  parameter = std::regex_replace(parameter, std::regex("^ +| +$"), "");
  return std::regex_replace(parameter, std::regex("([&> ]) ?[a-z_]+$"), "$1");
}

// Returns the types of the parameters, separated by commas. A comma in < > is part of a type.
std::string types_of(const std::string& parameters) {
  std::string types, parameter;
  int depth = 0;
  for (const char c : parameters + ',') {
    depth += c == '<' || c == '(' ? 1 : c == '>' || c == ')' ? -1 : 0;
    if (c != ',' || depth > 0) {
      parameter += c;
      continue;
    }
    std::string type = type_of(parameter);
    while (type.ends_with(' ')) type.pop_back();
    types += (types.empty() ? "" : ", ") + type;
    parameter.clear();
  }
  return types;
}

// Adds the functions of a header that return a tensor.
void add_functions(const fs::path& header, const std::string& prefix, const std::string& result,
                   std::set<std::string>& names) {
  const std::string text = declarations_of(source / header);
  const std::regex function(
      "[ ;}{]" + result + " (operator[-+*/]|[a-z_0-9]+)\\(((?:[^()]|\\([^()]*\\))*)\\)( const)?;");
  for (std::sregex_iterator i(text.begin(), text.end(), function), end; i != end; ++i)
    names.insert(prefix + (*i)[1].str() + "(" + types_of((*i)[2].str()) + ")");
}

// Adds the classes of a header that are layers, or losses.
void add_layers(const fs::path& header, std::set<std::string>& names) {
  const std::string text = declarations_of(header);
  const std::regex layer("class ([A-Z][A-Za-z0-9]*) : public [A-Z]|class (JointBatchNorm) \\{");
  for (std::sregex_iterator i(text.begin(), text.end(), layer), end; i != end; ++i)
    names.insert("nn::" + ((*i)[1].matched ? (*i)[1] : (*i)[2]).str());
}

std::set<std::string> public_operations() {
  std::set<std::string> names;
  for (const char* header : {"autograd/functions.h", "autograd/matmul.h", "autograd/recompute.h"})
    add_functions(header, "", "Tensor", names);
  for (const auto& file : fs::directory_iterator(source / "nn/functional"))
    if (file.path().extension() == ".h") add_functions(file.path(), "nn::", "Tensor", names);
  add_functions("nn/batch_norm/functional.h", "nn::", "Tensor", names);
  add_functions("core/tensor.h", "Tensor::", "Tensor", names);
  add_functions("core/tensor.h", "Tensor::", "const Tensor&", names);
  for (const char* folder : {"nn", "nn/batch_norm"})
    for (const auto& file : fs::directory_iterator(source / folder))
      if (file.path().extension() == ".h") add_layers(file.path(), names);
  // These compute nothing.
  for (const char* name :
       {"Tensor::grad()", "Tensor::requires_grad_(bool)", "nn::Layer", "nn::Conv"})
    EXPECT_EQ(names.erase(name), 1u) << name << " is no longer declared";
  return names;
}

TEST(RandomCoverage, EveryPublicOperationHasAReference) {
  std::set<std::string> compared;
  for (const test::Family& family : test::families())
    for (const test::Operation& operation : family.operations) compared.insert(operation.name);
  const std::set<std::string> declared = public_operations();
  ASSERT_GE(declared.size(), 100u) << "the headers are not read rightly";
  for (const std::string& name : declared)
    EXPECT_TRUE(compared.count(name))
        << name << " is declared in a public header but has no Operation in tests/random";
  for (const std::string& name : compared)
    EXPECT_TRUE(declared.count(name)) << name << " is compared but not declared in a public header";
}

}  // namespace
}  // namespace tutti
