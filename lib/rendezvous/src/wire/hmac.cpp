#include "ddrun/rendezvous/hmac.hpp"

// OpenSSL has deprecated the direct SHA-256 functions since 3.0, but still provides them; the EVP layer would slow the
// start.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

namespace ddrun::rendezvous {

namespace {

using Block = std::array<std::uint8_t, SHA256_CBLOCK>;
using State = std::array<std::uint32_t, 8>;

State after_one_block(const Block& block) {
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, block.data(), block.size());
  State state;
  std::copy(std::begin(context.h), std::end(context.h), state.begin());
  wipe(&context, sizeof context);
  return state;
}

SHA256_CTX begin_with(const State& state) {
  SHA256_CTX context;
  SHA256_Init(&context);
  std::copy(state.begin(), state.end(), std::begin(context.h));
  context.Nl = SHA256_CBLOCK * 8;  // bits hashed so far
  return context;
}

Digest finish(SHA256_CTX& context) {
  Digest digest;
  SHA256_Final(digest.data(), &context);
  wipe(&context, sizeof context);
  return digest;
}

}  // namespace

HmacKey::HmacKey(std::string_view key) {
  Block block{};
  if (key.size() > block.size()) {
    // Not SHA256(), which uses the EVP layer.
    SHA256_CTX context;
    SHA256_Init(&context);
    SHA256_Update(&context, key.data(), key.size());
    SHA256_Final(block.data(), &context);
    wipe(&context, sizeof context);
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  for (auto& byte : block) byte ^= 0x36;
  inner_ = after_one_block(block);
  for (auto& byte : block) byte ^= 0x36 ^ 0x5c;
  outer_ = after_one_block(block);
  wipe(block.data(), block.size());
}

HmacKey::~HmacKey() {
  wipe(inner_.data(), sizeof inner_);
  wipe(outer_.data(), sizeof outer_);
}

Digest HmacKey::sign(std::initializer_list<std::string_view> parts) const {
  SHA256_CTX context = begin_with(inner_);
  for (const auto part : parts) SHA256_Update(&context, part.data(), part.size());
  const Digest inside = finish(context);
  context = begin_with(outer_);
  SHA256_Update(&context, inside.data(), inside.size());
  return finish(context);
}

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

void wipe(void* data, std::size_t size) { OPENSSL_cleanse(data, size); }

}  // namespace ddrun::rendezvous
