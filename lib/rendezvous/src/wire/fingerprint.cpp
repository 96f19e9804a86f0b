#include "fingerprint.hpp"

#include <cstddef>
#include <span>

#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/hmac.hpp"

namespace ddrun::rendezvous {

std::string fingerprint(std::string_view text) {
  const Digest digest = HmacKey("ddrun program").sign({text});
  return in_hex(std::as_bytes(std::span(digest)).first(digest.size() / 2));
}

}  // namespace ddrun::rendezvous
