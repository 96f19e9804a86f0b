#include "ddrun/rendezvous/secret.hpp"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <map>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::TemporaryDirectory;

namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

EnvironmentLookup lookup(const Variables& variables) {
  return [&variables](std::string_view name) -> std::optional<std::string_view> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

/// The secret found; "none", or "error: …".
std::string found(const RendezvousSpec& spec, const Variables& variables) {
  const auto secret = find_secret(spec, lookup(variables));
  if (!secret) return "error: " + secret.error().message;
  return *secret ? std::string((*secret)->secret.bytes()) : "none";
}

RendezvousSpec from_file(const std::string& path) {
  RendezvousSpec spec;
  spec.secret_file = path;
  return spec;
}

std::string private_file(const TemporaryDirectory& dir, const std::string& name, const std::string& text) {
  std::string path = dir.file(name, text);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  return path;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::size_t entries_of(const std::string& directory) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator()));
}

unsigned mode_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777U : 0;
}

}  // namespace

TEST_CASE("The file that was named comes before the variable and that before the file at home") {
  const TemporaryDirectory dir;
  REQUIRE(write_new_secret(dir.path() + "/config/ddrun/secret", "of the configuration"));
  REQUIRE(write_new_secret(dir.path() + "/.config/ddrun/secret", "of the home directory"));
  const std::string named = private_file(dir, "named", "of the file named\n");
  const Variables all{
      {"DDRUN_SECRET", "of the variable.."}, {"XDG_CONFIG_HOME", dir.path() + "/config"}, {"HOME", dir.path()}};
  CHECK(found(from_file(named), all) == "of the file named");
  CHECK(found({}, all) == "of the variable..");
  CHECK(found({}, {{"XDG_CONFIG_HOME", dir.path() + "/config"}, {"HOME", dir.path()}}) == "of the configuration");
  CHECK(found({}, {{"HOME", dir.path()}}) == "of the home directory");
  CHECK(found({}, {{"XDG_CONFIG_HOME", "relative"}, {"HOME", dir.path()}}) == "of the home directory");
}

TEST_CASE("Without any secret nothing is found") {
  const TemporaryDirectory dir;
  CHECK(found({}, {}) == "none");
  CHECK(found({}, {{"HOME", dir.path()}}) == "none");
  CHECK(found({}, {{"HOME", dir.file("no-directory", "")}}) == "none");
}

TEST_CASE("The first process makes the secret, and the next one finds it") {
  const TemporaryDirectory dir;
  const Variables home{{"HOME", dir.path()}};
  const mode_t before = ::umask(0);
  const auto first = find_or_make_secret({}, lookup(home));
  ::umask(before);
  REQUIRE(first);
  CHECK(first->is_new);
  CHECK(first->file == dir.path() + "/.config/ddrun/secret");
  CHECK(mode_of(first->file) == 0600);
  CHECK(mode_of(dir.path() + "/.config/ddrun") == 0700);
  CHECK(first->secret.looks_strong());
  CHECK(ddrun::test::read_file(first->file) == std::string(first->secret.bytes()) + "\n");
  CHECK(entries_of(dir.path() + "/.config/ddrun") == 1);
  const auto second = find_or_make_secret({}, lookup(home));
  REQUIRE(second);
  CHECK_FALSE(second->is_new);
  CHECK(second->secret.bytes() == first->secret.bytes());
  // Existing ones are found first, and a refused one is not replaced.
  CHECK(find_or_make_secret({}, lookup({{"DDRUN_SECRET", "of the variable.."}}))->file.empty());
  REQUIRE(::chmod(first->file.c_str(), 0640) == 0);
  const auto refused = find_or_make_secret({}, lookup(home));
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "others may read or write"));
  CHECK_FALSE(find_or_make_secret(from_file(dir.path() + "/nothing"), lookup({})));
  CHECK(::access((dir.path() + "/nothing").c_str(), F_OK) != 0);
}

TEST_CASE("Of many processes that need a secret at once one makes it, and all have it whole") {
  for (int round = 0; round < 5; ++round) {
    const TemporaryDirectory dir;
    const Variables home{{"HOME", dir.path()}};
    int gate[2];
    int results[2];
    REQUIRE(::pipe(gate) == 0);
    REQUIRE(::pipe(results) == 0);
    constexpr int racers = 8;
    for (int i = 0; i < racers; ++i) {
      if (::fork() != 0) continue;
      ::close(gate[1]);
      char nothing = 0;
      (void)!::read(gate[0], &nothing, 1);  // until all are started
      const auto secret = find_or_make_secret({}, lookup(home));
      const std::string line = secret ? std::string(secret->secret.bytes()) + (secret->is_new ? "1" : "0") : "";
      const bool whole = line.size() == 65 && ::write(results[1], line.data(), 65) == 65;
      ::_exit(whole ? 0 : 1);
    }
    ::close(gate[0]);
    ::close(gate[1]);
    ::close(results[1]);
    std::map<std::string, int> secrets;
    int makers = 0;
    std::array<char, 65> line{};
    while (::read(results[0], line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
      ++secrets[std::string(line.data(), 64)];
      makers += line[64] == '1' ? 1 : 0;
    }
    ::close(results[0]);
    while (::wait(nullptr) > 0) {
    }
    CHECK(makers == 1);
    CHECK(secrets.size() == 1);
    CHECK(secrets.begin()->second == racers);
    CHECK(entries_of(dir.path() + "/.config/ddrun") == 1);
  }
}

TEST_CASE("Where no secret can be made the message shows how to give one") {
  const TemporaryDirectory dir;
  const auto refusal = [](const Variables& variables) {
    const auto secret = find_or_make_secret({}, lookup(variables));
    REQUIRE_FALSE(secret);
    CHECK(secret.error().code == Errc::invalid_argument);
    CHECK(contains(secret.error().message, "give --secret-file or DDRUN_SECRET"));
    return secret.error().message;
  };
  CHECK(contains(refusal({}), "neither XDG_CONFIG_HOME nor HOME is set"));
  const std::string file = dir.file("no-directory", "");
  CHECK(contains(refusal({{"HOME", file}}), "cannot make the directory " + file + "/.config: Not a directory"));
  CHECK(contains(refusal({{"HOME", "/proc"}}), "cannot make the directory /proc/.config"));
}

TEST_CASE("Different secrets are reported with both places and how to copy one") {
  const auto advice = [](const std::string& file, const std::string& from, const std::string& to) {
    return other_secret_advice(file, "n2", from, to);
  };
  CHECK(advice("/home/me/.config/ddrun/secret", "n1", "") ==
        "this machine's is /home/me/.config/ddrun/secret on n2; copy one, here:\n"
        "  scp -p n1:/home/me/.config/ddrun/secret /home/me/.config/ddrun/secret\n"
        "  (the other's place is what its ddrun says), or give all the same --secret-file or DDRUN_SECRET");
  CHECK(contains(advice("/my home/secret", "", "fd00::1"), "scp -p '/my home/secret' '[fd00::1]:/my home/secret'"));
  CHECK(advice("", "n1", "") == "give all agents the same one (--secret-file or DDRUN_SECRET)");
}

TEST_CASE("A file that was named must be there") {
  const TemporaryDirectory dir;
  CHECK(found(from_file(dir.path() + "/nothing"), {{"DDRUN_SECRET", "not asked then.."}}) ==
        "error: cannot read the secret file " + dir.path() + "/nothing: No such file or directory");
}

TEST_CASE("16 to 4096 bytes are a secret") {
  CHECK(Secret::from_text(std::string(16, 'x'))->bytes() == std::string(16, 'x'));
  CHECK(Secret::from_text(std::string(4096, 'x'))->bytes().size() == 4096);
  const std::string odd("a\0b\n c\xff 123456789", 16);
  CHECK(Secret::from_text(odd)->bytes() == odd);
  const std::string short_one = "hunter2";
  const auto refused = Secret::from_text(short_one);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message ==
        "a secret needs at least 16 bytes, this one has 7; 'ddrun secret new' makes a good one");
  CHECK_FALSE(Secret::from_text(std::string(4097, 'x')));
}

TEST_CASE("A secret is read alike from a file and a variable, whatever an editor put around it") {
  const TemporaryDirectory dir;
  const std::string text(16, 'k');
  CHECK(found(from_file(private_file(dir, "0", text)), {}) == text);
  for (const std::string& around : {text + "\n", text + "\r\n\n", "\xef\xbb\xbf" + text + "\n", " " + text + "\t"}) {
    CHECK(found(from_file(private_file(dir, std::to_string(around.size()), around)), {}) == text);
    CHECK(found({}, {{"DDRUN_SECRET", around}}) == text);
  }
  const std::string short_one = private_file(dir, "short", std::string(15, 'k') + "\n");
  CHECK(contains(found(from_file(short_one), {}), short_one + ": a secret needs at least 16 bytes, this one has 15"));
  const std::string longest(4096, 'k');
  CHECK(found(from_file(private_file(dir, "longest", longest + "\n")), {}) == longest);
  CHECK(contains(found(from_file(private_file(dir, "long", longest + "k")), {}), "at most 4096 bytes"));
  CHECK(contains(found(from_file(private_file(dir, "empty", "")), {}), "this one has 0"));
}

TEST_CASE("A file that others may read or write is refused") {
  const TemporaryDirectory dir;
  const std::string path = private_file(dir, "secret", std::string(16, 'k'));
  for (const unsigned mode : {0640U, 0604U, 0620U, 0602U, 0610U, 0644U, 0666U}) {
    CAPTURE(mode);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(contains(found(from_file(path), {}), "others may read or write the secret file " + path));
  }
  for (const unsigned mode : {0600U, 0400U, 0700U}) {
    CAPTURE(mode);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(found(from_file(path), {}) == std::string(16, 'k'));
  }
  // The same in the home directory, found without a name.
  REQUIRE(write_new_secret(dir.path() + "/.config/ddrun/secret", std::string(16, 'h')));
  REQUIRE(::chmod((dir.path() + "/.config/ddrun/secret").c_str(), 0640) == 0);
  CHECK(contains(found({}, {{"HOME", dir.path()}}), "others may read or write"));
}

TEST_CASE("A file that is not regular is refused without blocking") {
  const TemporaryDirectory dir;
  const std::string fifo = dir.path() + "/fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(found(from_file(fifo), {}) == "error: the secret file " + fifo + " is not a regular file");
  CHECK(contains(found(from_file(dir.path()), {}), "is not a regular file"));
  CHECK(contains(found(from_file("/dev/zero"), {}), "is not a regular file"));
}

TEST_CASE("A file of another user is refused") {
  if (::geteuid() != 0) ddrun::test::skip("needs root to make a file of another user");
  const TemporaryDirectory dir;
  const std::string path = private_file(dir, "secret", std::string(16, 'k'));
  REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
  CHECK(contains(found(from_file(path), {}), "belongs to user 65534, not to user 0"));
}

TEST_CASE("A Secret as mounted by Kubernetes is accepted, whatever its mode") {
  if (::geteuid() != 0) ddrun::test::skip("needs root to mount a file system");
  const TemporaryDirectory dir;
  const std::string mount = dir.path() + "/mount";
  REQUIRE(::mkdir(mount.c_str(), 0755) == 0);
  // 0: success; 77: cannot be tested here; other: the failed step.
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(77);
    if (::mount("tmpfs", mount.c_str(), "tmpfs", 0, nullptr) != 0) ::_exit(77);
    ::mkdir((mount + "/..data").c_str(), 0755);
    const std::string text(16, 'k');
    FILE* file = std::fopen((mount + "/..data/secret").c_str(), "w");
    if (file == nullptr || std::fputs(text.c_str(), file) < 0 || std::fclose(file) != 0) ::_exit(1);
    if (::symlink("..data/secret", (mount + "/secret").c_str()) != 0) ::_exit(2);
    ::chmod((mount + "/..data/secret").c_str(), 0644);
    if (found(from_file(mount + "/secret"), {}) == text) ::_exit(3);  // still writable: no Secret
    if (::mount(nullptr, mount.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) ::_exit(4);
    if (found(from_file(mount + "/secret"), {}) != text) ::_exit(5);
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(6);
    ::chdir("/");
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) ddrun::test::skip("mounting is not allowed here");
  CHECK(status == 0);
}

TEST_CASE("A secret that was moved from or overwritten holds nothing") {
  Secret first = *Secret::from_text("0123456789abcdef");
  Secret second = std::move(first);
  CHECK(second.bytes() == "0123456789abcdef");
  CHECK(first.bytes().empty());  // NOLINT(bugprone-use-after-move)
  second = *Secret::from_text("fedcba9876543210");
  CHECK(second.bytes() == "fedcba9876543210");
  std::string text = "0123456789abcdef0123456789abcdef";
  const char* room = text.data();
  wipe(text);
  CHECK(text.empty());
  CHECK(room == text.data());
  CHECK(std::string_view(room, 32) == std::string(32, '\0'));
}

TEST_CASE("New secrets are 256 bits as text and differ") {
  const auto one = new_secret_text();
  const auto other = new_secret_text();
  REQUIRE(one);
  REQUIRE(other);
  CHECK(one->size() == 64);
  CHECK(one->find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(*one != *other);
  CHECK(Secret::from_text(*one));
}

TEST_CASE("A new secret is written for its owner alone and never over another") {
  const TemporaryDirectory dir;
  const std::string path = dir.path() + "/a/ddrun/secret";
  const mode_t before = ::umask(0);
  CHECK(write_new_secret(path, "first secret of all"));
  ::umask(before);
  CHECK(ddrun::test::read_file(path) == "first secret of all\n");
  CHECK(mode_of(path) == 0600);
  CHECK(mode_of(dir.path() + "/a/ddrun") == 0700);
  CHECK(mode_of(dir.path() + "/a") == 0700);
  const auto again = write_new_secret(path, "second secret of all");
  REQUIRE_FALSE(again);
  CHECK(again.error().code == Errc::invalid_argument);
  CHECK(contains(again.error().message, "exists already"));
  CHECK(ddrun::test::read_file(path) == "first secret of all\n");
  // Nor through a link that leads elsewhere.
  REQUIRE(::symlink((dir.path() + "/elsewhere").c_str(), (dir.path() + "/a/link").c_str()) == 0);
  CHECK_FALSE(write_new_secret(dir.path() + "/a/link", "third secret of all"));
  CHECK(::access((dir.path() + "/elsewhere").c_str(), F_OK) != 0);
}

TEST_CASE("A directory that may not be written is named with its reason") {
  const TemporaryDirectory dir;
  REQUIRE(::chmod(dir.path().c_str(), 0555) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(6);
    const auto written = write_new_secret(dir.path() + "/.config/ddrun/secret", "a secret that is long enough");
    if (written) ::_exit(1);
    ::_exit(written.error().cause == std::errc::permission_denied && contains(written.error().message, "/.config") ? 0
                                                                                                                   : 2);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(::chmod(dir.path().c_str(), 0700) == 0);
  CHECK(status == 0);
}

TEST_CASE("A full disk leaves no half secret") {
  const TemporaryDirectory dir;
  const std::string path = dir.path() + "/secret";
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  rlimit small = old;
  small.rlim_cur = 10;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto written = write_new_secret(path, std::string(64, 'k'));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  std::signal(SIGXFSZ, handler);
  REQUIRE_FALSE(written);
  CHECK(written.error().code == Errc::unavailable);
  CHECK(entries_of(dir.path()) == 0);
}

TEST_CASE("words make a weak secret, random bytes and digits do not") {
  const auto strong = [](const std::string& text) { return Secret::from_text(text)->looks_strong(); };
  for (const char* words : {"correct horse battery", "sixteen bytes and more", "passwordpassword", "Password12345678",
                            "aaaaaaaaaaaaaaaaaaaaa", "1234567890123456", "0000000000000000000000000000000"}) {
    INFO(words);
    CHECK_FALSE(strong(words));
  }
  CHECK(strong("Zk3v+Qb8T/0xLw9RfY2uJg"));  // 16 bytes, base64
  CHECK(strong("7f3a9c02e1d84b56a0c9"));    // 10 bytes, hexadecimal
  CHECK(strong("\x91\x04\xe3\xba\x77\x1f\xc0\xd9\x58\x8e\x02\xaa\x6b\xf4\x13\x9d"));
  CHECK(strong("a sentence that is long enough to be no matter"));  // more than 32 bytes
  CHECK(strong(*new_secret_text()));
}
