// see the header
#include "schedule/cost_line_testing.h"

#include <cctype>
#include <cmath>
#include <stdexcept>

namespace ringcoll::simulator {
namespace {

/// Recursive descent over "2n(P-1)/P".
class Formula {
 public:
  Formula(std::string_view text, double n, const Sizes& sizes)
      : text_(text), n_(n), sizes_(sizes) {}

  double value() {
    double result = sum();
    if (peek() != '\0') throw std::invalid_argument("formula: " + std::string(text_));
    return result;
  }

 private:
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') at_++;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(std::string_view word) {
    peek();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  double sum() {
    double result = product();
    while (true) {
      if (take("+"))
        result += product();
      else if (take("-"))
        result -= product();
      else
        return result;
    }
  }
  double product() {
    double result = power();
    while (true) {
      char next = peek();
      if (take("/"))
        result /= power();
      else if (next == '(' || std::isalnum(static_cast<unsigned char>(next)))
        result *= power();
      else
        return result;
    }
  }
  double power() {
    double base = factor();
    return take("^") ? std::pow(base, power()) : base;
  }
  double factor() {
    if (take("ceil")) return std::ceil(factor() - 1e-9);
    if (take("floor")) return std::floor(factor() + 1e-9);
    if (take("lg")) return std::log2(factor());
    if (take("n")) return n_;
    if (take("P")) return sizes_.ranks;
    if (take("H")) return sizes_.hosts;
    if (take("R")) return sizes_.ranks / sizes_.hosts;
    if (take("(")) {
      double result = sum();
      if (!take(")")) throw std::invalid_argument("formula: " + std::string(text_));
      return result;
    }
    size_t length = 0;
    double number = std::stod(std::string(text_.substr(at_)), &length);
    at_ += length;
    return number;
  }

  std::string_view text_;
  size_t at_ = 0;
  double n_;
  Sizes sizes_;
};

}  // namespace

namespace {
constexpr std::string_view kAtMost = "at most ";
}

bool is_bound(std::string_view formula) { return formula.starts_with(kAtMost); }

double evaluate(std::string_view formula, double n, const Sizes& sizes) {
  if (is_bound(formula)) formula.remove_prefix(kAtMost.size());
  return Formula(formula, n, sizes).value();
}

CostLine parse_cost_line(std::string_view line) {
  constexpr std::string_view kSteps = "steps ", kBytes = ", bytes ";
  size_t bytes = line.find(kBytes);
  if (line.substr(0, kSteps.size()) != kSteps || bytes == std::string_view::npos)
    throw std::invalid_argument("cost line: " + std::string(line));
  return {std::string(line.substr(kSteps.size(), bytes - kSteps.size())),
          std::string(line.substr(bytes + kBytes.size()))};
}

}  // namespace ringcoll::simulator
