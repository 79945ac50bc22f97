// Replays what the fuzzer of the C ABI has found worth keeping (ci/fuzz).
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz.h"

namespace {

std::vector<std::string> inputs() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(RINGCOLL_CORPUS))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

/// A folder for the files of all inputs.
class Scratch : public ::testing::Environment {
 public:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "ringcoll-abi-XXXXXX";
    ASSERT_TRUE(::mkdtemp(folder.data()));
    ::setenv("TMPDIR", folder.c_str(), 1);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

 private:
  std::filesystem::path folder_;
};
const auto* const kScratch = ::testing::AddGlobalTestEnvironment(new Scratch);

class Corpus : public ::testing::TestWithParam<std::string> {};

TEST_P(Corpus, HoldsWhatTheHeaderPromises) {
  std::ifstream file(GetParam(), std::ios::binary);
  std::string input{std::istreambuf_iterator<char>(file), {}};
  ASSERT_TRUE(file);
  fuzz::play({reinterpret_cast<const uint8_t*>(input.data()), input.size()});
}

std::string name_of(const ::testing::TestParamInfo<std::string>& tested) {
  std::string name = std::filesystem::path(tested.param).filename();
  std::ranges::replace_if(name, [](unsigned char letter) { return !std::isalnum(letter); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Kept, Corpus, ::testing::ValuesIn(inputs()), name_of);

}  // namespace
