#include "munge.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <variant>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "handshake.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr std::string_view payload_label = "ddrun coordinator by MUNGE";
constexpr std::size_t secret_size = 64;  // of hexadecimal digits

/// Of munge.h, which all versions of MUNGE have in common; the programs end with them.
enum MungeError {
  no_error = 0,
  no_munged = 6,
  munged_too_slow = 7,
  expired = 15,
  of_the_future = 16,
  opened_before = 17,
  for_another_user = 18,
};

void add_socket(std::vector<std::string>& command, const MungePlace& place) {
  if (!place.socket.empty()) command.push_back(concat("--socket=", place.socket));
}

/// "munge: Error: Failed to access …": what it says itself, in one line.
std::string complaint_of(const helper::Output& answer, std::string_view program) {
  const std::string_view text = trim(answer.err);
  const std::string_view line = text.substr(0, text.find('\n'));
  return line.empty() ? concat(program, ": ", describe(answer.status)) : std::string(line);
}

/// The value of "NAME:   value" in unmunge's lines about the credential.
std::optional<std::string_view> line_of(std::string_view lines, std::string_view name) {
  while (!lines.empty()) {
    const auto end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.starts_with(name) && line.substr(name.size()).starts_with(':')) {
      return trim(line.substr(name.size() + 1));
    }
  }
  return std::nullopt;
}

tl::unexpected<Error> not_ours() {
  return fail(Errc::invalid_argument, "what MUNGE has sealed there is not of a ddrun like this one");
}

/// The secret of a payload that is of a coordinator in the same job.
Result<HmacKey> secret_in(std::string_view payload, const std::string& job) {
  const auto take_line = [&payload]() -> std::string_view {
    const auto end = payload.find('\n');
    if (end == std::string_view::npos) return {};
    const auto line = payload.substr(0, end);
    payload.remove_prefix(end + 1);
    return line;
  };
  if (take_line() != payload_label) return not_ours();
  const std::string_view its_job = take_line();
  const std::string_view secret = take_line();
  if (its_job.empty() || secret.size() != secret_size || !payload.empty()) return not_ours();
  if (its_job != job) {
    return fail(Errc::invalid_argument,
                concat("it belongs to Slurm job ", its_job, ", and this ddrun to job ", job,
                       ": if they are to be one job, give all agents the same secret (--secret-file or DDRUN_SECRET)"));
  }
  return HmacKey(secret);
}

}  // namespace

std::string credential_payload(const std::string& job, std::string_view secret) {
  return concat(payload_label, "\n", job, "\n", secret, "\n");
}

std::vector<std::string> munge_command(const MungePlace& place, uid_t uid) {
  // Not its default cipher, which may be none; all versions have this one.
  std::vector<std::string> command{"munge", concat("--restrict-uid=", uid), "--cipher=aes128",
                                   concat("--ttl=", credential_life.count())};
  add_socket(command, place);
  return command;
}

Result<std::string> credential_of(const Result<helper::Output>& answer) {
  if (!answer) return tl::unexpected(answer.error());
  if (!answer->succeeded()) return fail(Errc::unavailable, complaint_of(*answer, "munge"));
  const std::string_view credential = trim(answer->out);
  if (!credential.starts_with("MUNGE:") || credential.size() > max_credential) {
    return fail(Errc::unavailable, "munge has printed no credential");
  }
  return std::string(credential);
}

std::vector<std::string> unmunge_command(const MungePlace& place) {
  std::vector<std::string> command{"unmunge", "--numeric"};
  add_socket(command, place);
  return command;
}

Result<HmacKey> secret_of(const Result<helper::Output>& answer, const std::string& job, uid_t uid) {
  if (!answer) {
    return fail(answer.error().code == Errc::not_found ? Errc::invalid_argument : Errc::unavailable,
                answer.error().message);
  }
  const auto* exited = std::get_if<Exited>(&answer->status);
  switch (exited != nullptr ? exited->code : -1) {
    case no_error:
    case opened_before: break;
    case no_munged:
    case munged_too_slow:
      return fail(Errc::unavailable,
                  concat("MUNGE does not answer here, is munged running? ", complaint_of(*answer, "unmunge")));
    case expired:
    case of_the_future:
      return fail(Errc::unavailable,
                  concat("its MUNGE credential ", exited->code == expired ? "has expired" : "comes from the future",
                         ": do the clocks of the two machines differ?"));
    case for_another_user:
      return fail(Errc::invalid_argument, "it belongs to another user: MUNGE lets only that one read its credential");
    default:
      return fail(Errc::invalid_argument,
                  concat("MUNGE does not take its credential (", complaint_of(*answer, "unmunge"),
                         "): do all nodes have the same key of MUNGE?"));
  }
  const std::string_view text = answer->out;
  const auto end_of_lines = text.find("\n\n");
  if (end_of_lines == std::string_view::npos) return not_ours();
  const auto said = line_of(text.substr(0, end_of_lines), "UID");
  const auto its_user = said ? parse_integer(*said, 0, std::numeric_limits<uid_t>::max()) : fail(Errc::protocol, "");
  if (!its_user) return not_ours();
  if (*its_user != uid) {
    return fail(Errc::invalid_argument, concat("it belongs to user ", *its_user, ", and this ddrun to user ", uid));
  }
  return secret_in(text.substr(end_of_lines + 2), job);
}

}  // namespace ddrun::rendezvous
