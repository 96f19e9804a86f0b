#include "ddrun/collectives/reduction.hpp"

#include <algorithm>
#include <random>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "naive.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace ddrun::test;

namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kUntouched{0x5a};

std::string label(DataType type, ReduceOp op, SimdPath path) {
  return concat(name_of(type), ' ', name_of(op), ' ', name_of(path));
}

/// Random bits, including NaN, infinity and subnormal numbers; most floating values are moderate, so that sums stay
/// finite.
void fill(std::byte* data, DataType type, std::size_t count, std::mt19937_64& random) {
  const std::size_t size = size_of(type);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = random();
    if (kind_of(type) == NumberKind::floating && random() % 8 != 0) {
      const double number = static_cast<double>(static_cast<std::int64_t>(bits) >> 40) / 1024;
      if (type == DataType::float16) bits = encode(number / 64, 10, 5);
      if (type == DataType::bfloat16) bits = encode(number, 7, 8);
      if (type == DataType::float32) bits = std::bit_cast<std::uint32_t>(static_cast<float>(number / 3));
      if (type == DataType::float64) bits = std::bit_cast<std::uint64_t>(number / 3);
    }
    std::memcpy(data + i * size, &bits, size);
  }
}

bool same(DataType type, const std::byte* a, const std::byte* b) {
  return std::memcmp(a, b, size_of(type)) == 0 || (is_nan(type, a) && is_nan(type, b));
}

/// Inputs at odd addresses, and the naive loop's results.
struct Case {
  DataType type;
  ReduceOp op;
  std::size_t inputs;
  std::size_t count;
  int ranks;
  std::vector<Bytes> memory;
  std::vector<std::byte*> in;
  Bytes right;

  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  Case(DataType type_, ReduceOp op_, std::size_t inputs_, std::size_t count_, std::size_t skew, std::mt19937_64& random)
      : type(type_),
        op(op_),
        inputs(inputs_),
        count(count_),
        ranks(static_cast<int>(inputs_)),
        right(count_ * size_of(type_)) {
    const std::size_t size = size_of(type);
    for (std::size_t k = 0; k < inputs; ++k) {
      memory.emplace_back((count + 8) * size + 64, kUntouched);
      in.push_back(aligned(memory.back()) + (skew * k % 8) * size);
      fill(in.back(), type, count, random);
    }
    std::vector<const std::byte*> elements(inputs);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < inputs; ++k) elements[k] = in[k] + i * size;
      naive_element(type, op, elements, right.data() + i * size, ranks);
    }
  }

  static std::byte* aligned(Bytes& bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    return bytes.data() + (64 - address % 64) % 64;
  }

  /// The first index in [begin, end) that is wrong; `end` if none is.
  [[nodiscard]] std::size_t first_wrong(const std::byte* out, std::size_t begin, std::size_t end) const {
    const std::size_t size = size_of(type);
    while (begin < end && same(type, out + begin * size, right.data() + begin * size)) ++begin;
    return begin;
  }
};

void check_separate(const Case& one, SimdPath path, std::size_t outputs, Stores stores, std::size_t begin,
                    std::size_t end, std::size_t skew) {
  const std::size_t size = size_of(one.type);
  std::vector<Bytes> memory(outputs, Bytes((one.count + 8) * size + 64, kUntouched));
  std::vector<void*> out;
  for (std::size_t k = 0; k < outputs; ++k) out.push_back(Case::aligned(memory[k]) + skew * k % 8 * size);
  const std::vector<const void*> in(one.in.begin(), one.in.end());
  kernels(one.type, one.op, path).reduce(in.data(), in.size(), out.data(), outputs, begin, end, stores, one.ranks);
  for (std::size_t k = 0; k < outputs; ++k) {
    CAPTURE(label(one.type, one.op, path), one.inputs, outputs, one.count, begin, skew, k);
    const auto* const to = static_cast<std::byte*>(out[k]);
    CHECK(one.first_wrong(to, begin, end) == end);
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    const auto* const first = static_cast<const std::byte*>(memory[k].data());
    CHECK(std::all_of(first, to + begin * size, untouched));
    CHECK(std::all_of(to + end * size, first + memory[k].size(), untouched));
  }
}

void check_in_place(const Case& one, SimdPath path) {
  std::vector<Bytes> memory;
  for (const std::byte* in : one.in) memory.emplace_back(in, in + one.count * size_of(one.type));
  std::vector<const void*> in;
  std::vector<void*> out;
  for (Bytes& bytes : memory) {
    in.push_back(bytes.data());
    out.push_back(bytes.data());
  }
  kernels(one.type, one.op, path)
      .reduce(in.data(), in.size(), out.data(), out.size(), 0, one.count, Stores::normal, one.ranks);
  CAPTURE(label(one.type, one.op, path), one.inputs, one.count);
  for (const Bytes& bytes : memory) CHECK(one.first_wrong(bytes.data(), 0, one.count) == one.count);
}

void check_steps(const Case& one, SimdPath path) {
  const Kernels& loops = kernels(one.type, one.op, path);
  Bytes acc(one.count * size_of(accumulator_type(one.type)));
  Bytes out(one.count * size_of(one.type));
  loops.load(acc.data(), one.in[0], one.count);
  for (std::size_t k = 1; k < one.inputs; ++k) loops.accumulate(acc.data(), one.in[k], one.count);
  loops.finish(out.data(), acc.data(), one.count, one.ranks);
  CAPTURE(label(one.type, one.op, path), one.inputs, one.count);
  CHECK(one.first_wrong(out.data(), 0, one.count) == one.count);
}

}  // namespace

TEST_CASE("types and operations have the names of nccl-tests") {
  CHECK(data_type_named("half") == DataType::float16);
  CHECK(data_type_named("double") == DataType::float64);
  CHECK(!data_type_named("float32"));
  for (const DataType type : all_types) CHECK(data_type_named(name_of(type)) == type);
  for (const ReduceOp op : all_ops) CHECK(reduce_op_named(name_of(op)) == op);
  CHECK(!reduce_op_named("all"));
}

TEST_CASE("every reduction is right on every path, also at odd lengths and addresses") {
  std::mt19937_64 random(20261122);
  constexpr std::array<std::size_t, 4> kCounts{1, 7, 37, 1093};
  std::size_t next = 0;
  for (const DataType type : all_types) {
    for (const ReduceOp op : all_ops) {
      for (const std::size_t inputs : {1U, 2U, 3U, 4U, 5U, 8U}) {
        // Covers pairs of values rather than all combinations.
        const std::size_t count = kCounts[next % 4];
        const std::size_t skew = next / 4 % 2 * 3;
        ++next;
        const Case one(type, op, inputs, count, skew, random);
        for (const SimdPath path : usable_paths()) {
          check_separate(one, path, inputs, Stores::normal, 0, count, skew);
          check_separate(one, path, 1, Stores::normal, count / 3, count, skew);
          check_separate(one, path, inputs, Stores::streaming, count / 5, count, skew);
          if (skew == 0) check_separate(one, path, inputs, Stores::streaming, 0, count, 1);
          check_in_place(one, path);
          check_steps(one, path);
        }
      }
    }
  }
}

TEST_CASE("half and bfloat16 are converted as defined, for all bits") {
  // All 65536 numbers to float, and values around the limits of both types from float.
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> numbers(all.size());
  std::vector<float> wide;
  for (std::uint32_t bits = 0; bits < 0xffffffffU - 0x3001U; bits += 0x3001U) {
    wide.push_back(std::bit_cast<float>(bits));
  }
  for (const DataType type : {DataType::float16, DataType::bfloat16}) {
    const int fraction = type == DataType::float16 ? 10 : 7;
    const int exponent = 15 - fraction;
    for (const SimdPath path : usable_paths()) {
      CAPTURE(name_of(type), name_of(path));
      const Kernels& loops = kernels(type, ReduceOp::sum, path);
      loops.load(numbers.data(), all.data(), all.size());
      std::vector<float> between = wide;
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto right = static_cast<float>(decode(all[i], fraction, exponent));
        wrong += std::isnan(right) ? !std::isnan(numbers[i])
                                   : std::signbit(right) != std::signbit(numbers[i]) || right != numbers[i];
        // Halfway between two neighbours, and next to that.
        const auto next = static_cast<float>(decode(static_cast<std::uint16_t>(all[i] + 1), fraction, exponent));
        const float middle = right + (next - right) / 2;
        for (const float near : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, next)}) {
          between.push_back(near);
        }
      }
      CHECK(wrong == 0);
      std::vector<std::uint16_t> rounded(between.size());
      loops.finish(rounded.data(), between.data(), between.size(), 1);
      wrong = 0;
      for (std::size_t i = 0; i < between.size(); ++i) {
        const std::uint16_t right = encode(between[i], fraction, exponent);
        if (std::isnan(between[i])) wrong += !std::isnan(decode(rounded[i], fraction, exponent));
        else wrong += right != rounded[i];
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("half is rounded once, not at each input") {
  // 2048 + 1 + 1 is 2050 in half, but 2048 if each sum is rounded.
  const std::vector<std::uint16_t> in{encode(2048, 10, 5), encode(1, 10, 5), encode(1, 10, 5)};
  const void* const from[]{&in[0], &in[1], &in[2]};
  std::uint16_t result = 0;
  void* const to[]{&result};
  for (const SimdPath path : usable_paths()) {
    kernels(DataType::float16, ReduceOp::sum, path).reduce(from, 3, to, 1, 0, 1, Stores::normal, 3);
    CHECK(decode(result, 10, 5) == 2050);
  }
}

TEST_CASE("the average of integers is the wrapped sum, divided and truncated towards zero") {
  const auto average = [](std::vector<std::int8_t> in) {
    std::vector<const void*> from;
    for (const std::int8_t& one : in) from.push_back(&one);
    std::int8_t result = 0;
    void* const to[]{&result};
    kernels(DataType::int8, ReduceOp::avg)
        .reduce(from.data(), from.size(), to, 1, 0, 1, Stores::normal, static_cast<int>(in.size()));
    return static_cast<int>(result);
  };
  CHECK(average({7, 8}) == 7);
  CHECK(average({-7, -8}) == -7);
  CHECK(average({1, 1, 3}) == 1);
  CHECK(average({100, 100}) == (200 - 256) / 2);
}
