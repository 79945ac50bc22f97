#include "mesh/saying.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "net/wire.h"
#include "transport/knobs.h"

namespace ringcoll {
namespace {

// Both come first in every release, so that other releases can read them.
constexpr uint32_t kSayingMagic = 0x4954'4c52;  // "RLTI"
// Must change when ranks of different builds could not understand each other.
constexpr int32_t kWireVersion = 9;

constexpr const char* kSaying = "what a rank says of itself";
constexpr size_t kMaxShort = 64;
constexpr size_t kMaxText = 64 << 10;
// For a location, which may hold a topology file, and for a file of costs.
constexpr size_t kMaxLong = 16 << 20;
constexpr float kMostFloat = std::numeric_limits<float>::max();

}  // namespace

const std::string& own_release() {
  static const std::string release = RINGCOLL_VERSION "+" RINGCOLL_SOURCES;
  return release;
}

std::string Introduction::encode() const {
  WireWriter writer;
  writer.put(kSayingMagic);
  writer.put(kWireVersion);
  writer.put_text(release);
  writer.put(group_bytes);
  writer.put<uint8_t>(more_may_come);
  writer.put<uint8_t>(is_last);
  for (const std::string* text :
       {&failure, &location, &offers, &costs_file, &costs, &agreed, &secret})
    writer.put_text(*text);
  return writer.take();
}

void Introduction::check_release(std::string_view bytes, Rank rank, Rank own) {
  WireReader reader(bytes, kSaying);
  check(bytes.size() >= sizeof kSayingMagic && reader.get<uint32_t>() == kSayingMagic,
        Code::kTransport,
        "the introduction of rank {} cannot be read: another program, or another version of "
        "ringcoll, uses the same store",
        rank);
  auto wire = reader.get<int32_t>();
  std::string release = reader.get_text(kMaxShort);
  check(wire == kWireVersion && release == own_release(), Code::kTransport,
        "rank {} runs ringcoll {} (wire version {}), this rank {} {} (wire version {}): install "
        "the same version, of the same sources, on all hosts",
        rank, release, wire, own, own_release(), kWireVersion);
}

Introduction Introduction::decode(std::string_view bytes) {
  WireReader reader(bytes, kSaying);
  reader.get<uint32_t>();
  reader.get<int32_t>();
  Introduction said;
  said.release = reader.get_text(kMaxShort);
  said.group_bytes = reader.get<uint64_t>();
  said.more_may_come = reader.get<uint8_t>() != 0;
  said.is_last = reader.get<uint8_t>() != 0;
  for (std::string* text : {&said.failure, &said.location, &said.offers, &said.costs_file,
                            &said.costs, &said.agreed, &said.secret})
    *text = reader.get_text(kMaxLong);
  reader.finish();
  return said;
}

std::string agreed_values(const Config& config) {
  WireWriter writer;
  for (const KnobRow& row : all_knobs().rows())
    if (row.agreement == Agreement::kAgreed) writer.put_text(value_of(row, config));
  return writer.take();
}

void check_agreed(std::string_view first, std::string_view theirs, Rank rank,
                  std::string_view host) {
  if (theirs == first) return;
  constexpr const char* kKnobs = "the knobs of a rank";
  WireReader expected(first, kKnobs), said(theirs, kKnobs);
  auto shown = [](const std::string& value) {
    return value.empty() ? "(empty)" : fmt::format("\"{}\"", value);
  };
  for (const KnobRow& row : all_knobs().rows()) {
    if (row.agreement != Agreement::kAgreed) continue;
    std::string ours = expected.get_text(kMaxText), other = said.get_text(kMaxText);
    check(ours == other, Code::kInvalidArgument,
          "{} is {} on rank 0, but {} on rank {} [on {}]: set it to the same value on all ranks, "
          "or on none",
          row.name, shown(ours), shown(other), rank, host);
  }
  for (const WireReader* reader : {&expected, &said}) reader->finish();
}

std::string with_failure(const std::optional<Error>& failure, std::string_view said) {
  WireWriter writer;
  writer.put<uint8_t>(failure.has_value());
  if (!failure) return writer.take().append(said);
  writer.put(static_cast<int32_t>(failure->code()));
  writer.put(failure->rank());
  writer.put_text(std::string_view(failure->what()).substr(0, kMaxText));
  return writer.take();
}

std::string_view without_failure(std::string_view bytes, Rank rank) {
  WireReader reader(bytes, "what a rank says at the start");
  if (reader.get<uint8_t>() == 0) return bytes.substr(1);
  auto code = reader.get<int32_t>();
  auto blamed = reader.get<Rank>();
  check(code >= RC_INVALID_ARGUMENT && code <= RC_ABORTED, Code::kTransport,
        "rank {} raises an error of code {}: install the same version of ringcoll on all hosts",
        rank, code);
  throw Error(static_cast<Code>(code), reader.get_text(kMaxText), blamed);
}

std::string Addresses::encode() const {
  WireWriter writer;
  writer.put_text(networks);
  writer.put(static_cast<uint32_t>(of_transport.size()));
  for (const auto& [name, address] : of_transport) {
    writer.put_text(name);
    writer.put_text(address);
  }
  return writer.take();
}

Addresses Addresses::decode(std::string_view bytes) {
  WireReader reader(bytes, "the addresses of a rank's transports");
  Addresses addresses;
  addresses.networks = reader.get_text(kMaxText);
  auto count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < count; i++) {
    std::string name = reader.get_text(kMaxShort);
    addresses.of_transport[std::move(name)] = reader.get_text(kMaxAddressBytes);
  }
  reader.finish();
  return addresses;
}

std::string Answer::encode() const {
  WireWriter writer;
  writer.put_text(reached.encode());
  writer.put(static_cast<uint32_t>(why.size()));
  for (const auto& [rank, reasons] : why) {
    writer.put(rank);
    writer.put_text(reasons);
  }
  return writer.take();
}

Answer Answer::decode(std::string_view bytes, Rank size) {
  WireReader reader(bytes, "the answer of a rank at the start");
  Answer answer{.reached = Reached::decode(reader.get_text(kMaxLong), size)};
  auto count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < count; i++) {
    auto rank = reader.get<Rank>();
    answer.why[rank] = reader.get_text(kMaxText);
  }
  reader.finish();
  return answer;
}

// Single precision is enough for measurements. All ranks, even the one that measured, use the
// encoded values.
std::string encode_samples(const std::vector<LevelSamples>& samples) {
  WireWriter writer;
  for (const LevelSamples& level : samples)
    for (const LinkSample& sample : level)
      for (double value : {sample.latency_us, sample.rank_bytes_per_us, sample.lane_bytes_per_us})
        writer.put(static_cast<float>(std::min<double>(value, kMostFloat)));
  return writer.take();
}

std::vector<LevelSamples> decode_samples(std::string_view bytes, size_t levels, Rank rank) {
  constexpr size_t kNumbers = 3;
  check(bytes.size() == levels * kMeasuringRounds * kNumbers * sizeof(float), Code::kTransport,
        "what rank {} measured cannot be read: install the same version of ringcoll on all hosts",
        rank);
  WireReader reader(bytes, "what a rank measured");
  std::vector<LevelSamples> samples(levels);
  for (LevelSamples& level : samples)
    for (LinkSample& sample : level)
      for (double* value :
           {&sample.latency_us, &sample.rank_bytes_per_us, &sample.lane_bytes_per_us})
        *value = reader.get<float>();
  return samples;
}

}  // namespace ringcoll
