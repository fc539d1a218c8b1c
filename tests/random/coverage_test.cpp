// Checks that the table of operations is complete: every function that returns tensors in the
// public headers of autograd/, nn/, core/tensor.h, core/create.h and distributed/functional.h,
// every such member of Tensor, and every layer is compared with a reference, or is an exception
// with a reason. The declarations are read from the headers themselves.
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

// What needs no comparison with a reference, and why.
const std::vector<std::pair<std::string, std::vector<std::string>>> exceptions{
    {"it computes nothing",
     {"Tensor::grad()", "Tensor::requires_grad_(bool)", "nn::BatchNormArgs",
      "nn::RegisteredTensor"}},
    {"it holds layers and computes nothing", {"nn::Child", "nn::ModuleList"}},
    {"it is the base of layers that are compared",
     {"nn::Module", "nn::Layer", "nn::LayerWith", "nn::TwoInputLayer", "nn::Conv",
      "nn::ConvTranspose", "nn::InstanceNorm", "nn::MaxPool", "nn::Loss", "nn::ActivationLayer",
      "nn::ModuleSequence"}},
    {"it counts; tests/nn/confusion_matrix_test.cpp covers it", {"nn::ConfusionMatrix"}},
    {"tests/nn/segmentation_test.cpp compares them with torchvision's",
     {"nn::SegmentationNetwork", "nn::FCN", "nn::DeepLabV3", "nn::ASPP"}},
    {"tests/nn/predictor_test.cpp compares it with the network that it runs", {"nn::Predictor"}},
    {"it makes a tensor from no other; tests/core covers it",
     {"empty(const Shape&, TensorOptions, MemoryFormat)", "empty_like(const Tensor&)",
      "empty_like(const Tensor&, DType)", "zeros(const Shape&, TensorOptions)",
      "zeros_like(const Tensor&)", "ones(const Shape&, TensorOptions)",
      "full(const Shape&, double, TensorOptions)", "scalar(double, TensorOptions)",
      "arange(std::int64_t, TensorOptions)", "tensor(const std::vector<double>&, TensorOptions)",
      "tensor(const std::vector<double>&, const Shape&, TensorOptions)",
      "tensor(const std::vector<T>&, TensorOptions)",
      "tensor(const std::vector<T>&, const Shape&, TensorOptions)",
      "from_blob(void*, const Shape&, DType, std::function<void()>, Device)",
      "from_blob(void*, const Shape&, const Strides&, DType, std::function<void()>, Device)",
      "rand(const Shape&, TensorOptions, Generator&)",
      "randn(const Shape&, TensorOptions, Generator&)",
      "randint(std::int64_t, const Shape&, TensorOptions, Generator&)",
      "bernoulli(double, const Shape&, TensorOptions, Generator&)"}},
    {"tests/distributed/functional_case.h compares it across ranks",
     {"distributed::all_reduce(const Tensor&, const ProcessGroup&, ReduceOp, const CallOptions&)",
      "distributed::all_gather(const Tensor&, const ProcessGroup&, const CallOptions&)",
      "distributed::reduce_scatter(const Tensor&, const ProcessGroup&, ReduceOp, "
      "const CallOptions&)"}},
    {"it spells a compared function another way; tests/autograd/views_test.cpp covers it",
     {"Tensor::operator+=(const Tensor&)", "Tensor::operator+=(double)",
      "Tensor::operator-=(const Tensor&)", "Tensor::operator-=(double)",
      "Tensor::operator*=(const Tensor&)", "Tensor::operator*=(double)",
      "Tensor::operator/=(const Tensor&)", "Tensor::operator/=(double)",
      "Tensor::operator=(Tensor&&)", "Tensor::operator=(const T&)",
      "Tensor::operator=(const Tensor&)", "Tensor::operator[](std::int64_t)"}},
    {"it spells a compared function another way; tests/autograd/functions_test.cpp covers it",
     {"operator!=(const Tensor&, const Tensor&)", "operator!=(const Tensor&, double)",
      "operator<(const Tensor&, const Tensor&)", "operator<(const Tensor&, double)",
      "operator<=(const Tensor&, const Tensor&)", "operator<=(const Tensor&, double)",
      "operator==(const Tensor&, const Tensor&)", "operator==(const Tensor&, double)",
      "operator>(const Tensor&, const Tensor&)", "operator>(const Tensor&, double)",
      "operator>=(const Tensor&, const Tensor&)", "operator>=(const Tensor&, double)"}},
    {"it converts to the dtype of Autocast, which the tests of matmul, Linear and Conv cover",
     {"autocast(const char*, const Tensor&)"}},
    {"it is what operations are recorded with, and each of them is compared",
     {"autograd::Saved",
      "autograd::record(std::string, Tensor, const std::vector<Tensor>&, Closure)",
      "autograd::record_node(std::string, Tensor, const std::vector<Tensor>&, Backward)",
      "autograd::sum_to(const Tensor&, const Shape&)"}},
};

// Returns whether the operations that a public header declares are to be compared: those of
// autograd/ and nn/, the tensor, the functions that make one, and the differentiable collectives.
bool is_read(const fs::path& header) {
  const std::string folder = *header.begin();
  return folder == "autograd" || folder == "nn" || header == "core/tensor.h" ||
         header == "core/create.h" || header == "distributed/functional.h";
}

// Adds the headers that a file includes, and what those include in turn.
void add_headers(const fs::path& file, const fs::path& folder, std::set<fs::path>& headers) {
  static const std::regex include("#include \"(.*)\"");
  std::ifstream lines(source / file);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, match, include)) continue;
    const fs::path header = (folder / match[1].str()).lexically_normal();
    if (headers.insert(header).second) add_headers(header, header.parent_path(), headers);
  }
}

// Returns a header in one line, without comments and preprocessor lines.
std::string text_of(const fs::path& header) {
  std::ifstream file(source / header);
  std::string text, line;
  while (std::getline(file, line)) {
    line = line.substr(0, line.find("//"));
    if (!line.starts_with('#')) text += line + ' ';
  }
  text = std::regex_replace(text, std::regex("\\s+"), " ");
  return std::regex_replace(text, std::regex("Tensor\\((max|min)\\)"), "Tensor $1");
}

// Returns the type of a parameter, which may have a name and a default.
std::string type_of(std::string parameter) {
  parameter = parameter.substr(0, parameter.find('='));
  parameter = std::regex_replace(parameter, std::regex("^ +| +$"), "");
  return std::regex_replace(parameter, std::regex("([&> ]) ?[a-z_0-9]+$"), "$1");
}

// Returns the types of the parameters up to the closing parenthesis, separated by commas. A comma
// in < > or ( ) is part of a type.
std::string types_of(const std::string& parameters) {
  std::string types, parameter;
  int depth = 0;
  for (const char c : parameters) {
    const bool is_end = c == ')' && depth == 0;
    depth += c == '<' || c == '(' ? 1 : c == '>' || c == ')' ? -1 : 0;
    if (!is_end && (c != ',' || depth > 0)) {
      parameter += c;
      continue;
    }
    std::string type = type_of(parameter);
    while (type.ends_with(' ')) type.pop_back();
    types += (types.empty() ? "" : ", ") + type;
    parameter.clear();
    if (is_end) break;
  }
  return types;
}

// Collects what headers declare: the functions whose result holds tensors, at namespace scope and
// as public members of Tensor, and the classes that derive from another or have such a function.
class Declarations {
 public:
  void read(const fs::path& header);
  std::set<std::string> names;

 private:
  // A namespace or class. Nothing is read in other braces, which are bodies and nested classes.
  struct Scope {
    bool is_read = false, is_class = false, is_public = true;
    std::string name = {};  // with what stands before it
  };

  Scope opened_by(const std::string& statement);
  void add_function(const std::string& statement);

  std::vector<Scope> scopes_;
};

// Returns the scope that the brace after `statement` opens.
Declarations::Scope Declarations::opened_by(const std::string& statement) {
  static const std::regex space("(?:inline )?namespace (?:tutti)?(?:::)?(\\w*) ?"),
      type("(?:template <.*> ?)?(class|struct) (\\w+)( final)?( ?: .*)? ?");
  const Scope outer = scopes_.empty() ? Scope{.is_read = true} : scopes_.back();
  const std::string prefix = outer.name.empty() ? "" : outer.name + "::";
  std::smatch match;
  if (std::regex_match(statement, match, space))
    return {.is_read = true, .name = match[1].length() > 0 ? prefix + match[1].str() : outer.name};
  if (outer.is_class || !std::regex_match(statement, match, type)) return {};
  const std::string name = prefix + match[2].str();
  if (match[4].matched) names.insert(name);
  return {.is_read = true, .is_class = true, .is_public = match[1] == "struct", .name = name};
}

// Adds the function that a statement declares, if its result holds tensors.
void Declarations::add_function(const std::string& statement) {
  static const std::regex function(
      "([^=]*?)\\b(operator ?[^\\w\\s(]+|operator\\(\\)|[a-z]\\w*) ?\\((.*)"),
      tensors(".*\\bTensor\\b.*"), trailing(".*\\) ?(const )?-> .*\\bTensor\\b.*"),
      other("(using|friend|typedef) .*");
  std::smatch match;
  if (std::regex_match(statement, other) || !std::regex_match(statement, match, function)) return;
  if (!std::regex_match(match[1].str(), tensors) && !std::regex_match(match[3].str(), trailing))
    return;
  const Scope& scope = scopes_.back();
  if (scope.is_class && scope.name != "Tensor") {
    names.insert(scope.name);
    return;
  }
  names.insert((scope.name.empty() ? "" : scope.name + "::") + match[2].str() + "(" +
               types_of(match[3].str()) + ")");
}

void Declarations::read(const fs::path& header) {
  static const std::regex label(" ?(public|protected|private): ?(.*)");
  std::string statement;
  int parentheses = 0;
  for (const char c : text_of(header)) {
    parentheses += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (parentheses > 0 || (c != ';' && c != '{' && c != '}')) {
      if (c != ' ' || !statement.empty()) statement += c;
      continue;
    }
    const bool is_read = scopes_.empty() || scopes_.back().is_read;
    for (std::smatch match; is_read && std::regex_match(statement, match, label);) {
      scopes_.back().is_public = match[1] == "public";
      statement = std::string(match[2]);
    }
    if (is_read && c != '}' && !scopes_.empty() && scopes_.back().is_public)
      add_function(statement);
    if (c == '{') scopes_.push_back(is_read ? opened_by(statement) : Scope());
    if (c == '}') scopes_.pop_back();
    statement.clear();
  }
  EXPECT_TRUE(scopes_.empty()) << header << " is not read rightly";
}

std::set<std::string> public_operations() {
  std::set<fs::path> headers;
  add_headers("cmake/tutti.h.in", "", headers);
  Declarations declarations;
  for (const fs::path& header : headers)
    if (is_read(header)) declarations.read(header);
  return declarations.names;
}

TEST(RandomCoverage, EveryPublicOperationHasAReference) {
  std::set<std::string> compared;
  for (const test::Family& family : test::families())
    for (const test::Operation& operation : family.operations) compared.insert(operation.name);
  std::set<std::string> declared = public_operations();
  ASSERT_GE(declared.size(), 100u) << "the headers are not read rightly";
  for (const auto& [reason, names] : exceptions)
    for (const std::string& name : names)
      EXPECT_EQ(declared.erase(name), 1u) << name << " (" << reason << ") is no longer declared";
  for (const std::string& name : declared)
    EXPECT_TRUE(compared.count(name))
        << name << " is declared in a public header but has no Operation in tests/random";
  for (const std::string& name : compared)
    EXPECT_TRUE(declared.count(name)) << name << " is compared but not declared in a public header";
}

}  // namespace
}  // namespace tutti
