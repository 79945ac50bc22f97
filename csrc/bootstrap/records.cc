#include "bootstrap/records.h"

#include <algorithm>

#include "bootstrap/compress.h"
#include "bootstrap/exchange.h"
#include "net/wire.h"
#include "store/store.h"

namespace ringcoll {
namespace {

constexpr uint32_t kRecordMagic = 0x31524352;   // "RCR1", with the version
constexpr uint32_t kOutcomeMagic = 0x334f4352;  // "RCO3"
constexpr size_t kMaxClaimBytes = 1024;
constexpr size_t kMaxErrorBytes = 16 * 1024;

void expect_magic(WireReader* reader, uint32_t magic, const char* what) {
  check(reader->get<uint32_t>() == magic, Code::kTransport,
        "{} was not written by this version of ringcoll; install the same version on all hosts, "
        "and let no other program use this store",
        what);
}

}  // namespace

std::string Record::encode() const {
  WireWriter writer;
  writer.put(kRecordMagic);
  writer.put(size);
  writer.put_text(claim.token);
  writer.put_text(claim.process);
  writer.put_text(blob);
  return writer.take();
}

Record Record::decode(std::string_view bytes) {
  constexpr const char* kWhat = "the record of a rank in the store";
  WireReader reader(bytes, kWhat);
  expect_magic(&reader, kRecordMagic, kWhat);
  Record record;
  record.size = reader.get<Rank>();
  record.claim.token = reader.get_text(kMaxClaimBytes);
  record.claim.process = reader.get_text(kMaxClaimBytes);
  record.blob = reader.get_text(kMaxValueBytes);
  reader.finish();
  return record;
}

std::string Outcome::encode() const {
  WireWriter writer;
  writer.put(kOutcomeMagic);
  writer.put(static_cast<int32_t>(error ? static_cast<int>(error->code()) : 0));
  if (error) {
    writer.put(error->rank());
    writer.put<uint8_t>(is_early);
    writer.put_text(std::string_view(error->what()).substr(0, kMaxErrorBytes));
    return writer.take();
  }
  writer.put(static_cast<uint32_t>(records.size()));
  WireWriter all;
  for (const Record& record : records) all.put_text(record.encode());
  writer.put_text(compress(all.take()));
  return writer.take();
}

Outcome Outcome::decode(std::string_view bytes) {
  constexpr const char* kWhat = "what rank 0 has put into the store";
  WireReader reader(bytes, kWhat);
  expect_magic(&reader, kOutcomeMagic, kWhat);
  Outcome outcome;
  int32_t code = reader.get<int32_t>();
  if (code != 0) {
    check(code >= RC_INVALID_ARGUMENT && code <= RC_ABORTED, Code::kTransport,
          "{}: the error code {} is unknown; install the same version of ringcoll on all hosts",
          kWhat, code);
    Rank rank = reader.get<Rank>();
    outcome.is_early = reader.get<uint8_t>() != 0;
    outcome.error = Error(static_cast<Code>(code), reader.get_text(kMaxErrorBytes), rank);
  } else {
    uint32_t count = reader.get<uint32_t>();
    check(count <= uint32_t{kMostRanks}, Code::kTransport, "{}: {} ranks are too many", kWhat,
          count);
    std::string all = decompress(reader.get_view(kMaxValueBytes), kMaxValueBytes);
    WireReader records(all, kWhat);
    outcome.records.reserve(std::min<size_t>(count, all.size() / sizeof(uint32_t)));
    for (uint32_t i = 0; i < count; i++)
      outcome.records.push_back(Record::decode(records.get_view(kMaxValueBytes)));
    records.finish();
  }
  reader.finish();
  return outcome;
}

}  // namespace ringcoll
