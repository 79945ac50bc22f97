// Structs of callers of other revisions, of a struct that has had three.
#include "engine/caller_struct.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

namespace ringcoll {
namespace {

struct Options {
  size_t struct_size;
  int64_t first;
  int64_t second;
  double third;
};
constexpr std::array<size_t, 3> kSizes = {16, 24, sizeof(Options)};

/// What a caller passes whose struct has `bytes` in all, fields 1, 2, 3, …, and then garbage.
std::vector<int64_t> struct_of(size_t bytes, bool garbage = true) {
  std::vector<int64_t> words = {static_cast<int64_t>(bytes)};
  while (words.size() * 8 < bytes) words.push_back(static_cast<int64_t>(words.size()));
  if (garbage) words.resize(words.size() + 8, -1);
  return words;
}

Options copy(const void* given) {
  Options options{};
  copy_from_caller(given, &options, {"options", kSizes});
  return options;
}

std::string refusal(const void* given) {
  try {
    copy(given);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(CallerStruct, WhatAnOlderCallerLacksIsZero) {
  for (size_t bytes : kSizes) {
    Options options = copy(struct_of(bytes).data());
    EXPECT_EQ(options.first, 1);
    EXPECT_EQ(options.second, bytes >= 24 ? 2 : 0);
    EXPECT_EQ(std::memcmp(&options.third, bytes >= 32 ? "\3\0\0\0\0\0\0" : "\0\0\0\0\0\0\0", 8), 0);
  }
}

TEST(CallerStruct, WhatANewerCallerHasBeyondMustBeZero) {
  std::vector<int64_t> newer = struct_of(48);
  std::string text = refusal(newer.data());
  for (const std::string& part :
       {std::string("options of 48 bytes"), std::string("(32 bytes)"),
        "revision of the C ABI than " + std::to_string(RINGCOLL_ABI_REVISION),
        std::string(RINGCOLL_VERSION), std::string("install")})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  newer[4] = 0;
  EXPECT_NE(refusal(newer.data()), "");
  newer[5] = 0;
  EXPECT_EQ(copy(newer.data()).second, 2);
}

TEST(CallerStruct, ASizeThatNoRevisionHadIsRefused) {
  const std::string history = "16 bytes in revision 1 of the C ABI, 24 in 2, 32 in 3";
  // Too short, half a field, and what an unset field may hold: none is looked at beyond its size.
  for (size_t bytes :
       {size_t{0}, size_t{8}, size_t{15}, size_t{23}, size_t{31}, size_t{5000}, ~size_t{0}}) {
    std::vector<int64_t> given = {static_cast<int64_t>(bytes)};
    std::string text = refusal(given.data());
    EXPECT_NE(text.find(history), std::string::npos) << bytes << ": " << text;
    EXPECT_NE(text.find("sizeof(options)"), std::string::npos) << text;
  }
  EXPECT_NE(refusal(nullptr).find("options is NULL"), std::string::npos);
}

}  // namespace
}  // namespace ringcoll
