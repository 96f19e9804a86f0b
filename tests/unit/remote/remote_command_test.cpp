#include "remote_command.hpp"

#include "ddrun/remote/bootstrap.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::remote;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

TEST_CASE("A command is cut into words as a shell would") {
  CHECK(*split_command("ssh") == Words{"ssh"});
  CHECK(*split_command("  ssh \t -F 'my file'  ") == Words{"ssh", "-F", "my file"});
  CHECK(*split_command(R"(ssh -o "ProxyCommand=nc %h \"x\"" '' a\ b)") ==
        Words{"ssh", "-o", "ProxyCommand=nc %h \"x\"", "", "a b"});
  CHECK(*split_command("a'b'\"c\"") == Words{"abc"});
  CHECK(split_command("ssh 'x").error().message == "'ssh 'x' has a ' without its second one");
  CHECK_FALSE(split_command(""));
  CHECK_FALSE(split_command("  "));
}

TEST_CASE("A connection that a proxy closed before the login is told from a refusal") {
  const std::string outer =
      "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n";
  CHECK(closed_by_proxy(outer));
  CHECK(closed_by_proxy("kex_exchange_identification: read: Connection reset by peer\r\n" + outer));
  CHECK(closed_by_proxy("Connection closed by 10.0.0.1 port 22\r\n" + outer));  // the jump host's
  CHECK(closed_by_proxy("banner exchange: Connection to UNKNOWN port 65535: Broken pipe\n"));
  CHECK(closed_by_proxy("Warning: Permanently added 'a' (ED25519) to the list of known hosts.\r\n\n" + outer));
  CHECK(closed_by_proxy("** WARNING: connection is not using a post-quantum key exchange algorithm.\r\n" + outer));
  for (const char* reason :
       {"root@jump: Permission denied (publickey).\r\n", "ssh: Could not resolve hostname jump: Name unknown\r\n",
        "ssh: connect to host jump port 22: Connection refused\r\n", "Host key verification failed.\r\n",
        "channel 0: open failed: connect failed: No route to host\r\nstdio forwarding failed\r\n"}) {
    CHECK_FALSE(closed_by_proxy(reason + outer));
    CHECK_FALSE(closed_by_proxy(reason));
  }
  for (const char* direct : {"", "Warning: x\n", "Connection reset by 10.0.0.1 port 22\n",
                             "kex_exchange_identification: Connection closed by remote host\r\n"}) {
    CHECK_FALSE(closed_by_proxy(direct));
  }
}

TEST_CASE("The remote command can be read by any login shell") {
  const std::string command = remote_command("0.1.0-abc+", "/opt/my tools/ddrun", 12345, 90s);
  CHECK(command.substr(0, 17) == "exec /bin/sh -c '");
  CHECK(command.back() == '\'');
  const std::string script = command.substr(17, command.size() - 18);
  // csh, fish and the Bourne shells differ in how these are read within single quotes.
  CHECK(script.find_first_of("'\\!\n") == std::string::npos);
  CHECK(script.find("\"/opt/my tools/ddrun\" ddrun") != std::string::npos);
  // The host's umask and exported variables reach the workers.
  CHECK(script.find("umask") == std::string::npos);
  CHECK(script.find("; n=") == std::string::npos);
  CHECK(script.find("_n=12345; _s=90;") != std::string::npos);
}

TEST_CASE("A path that a shell would read differently is not tried") {
  for (const std::string path :
       {"/a'b/ddrun", "/a$b/ddrun", "/a`b/ddrun", "/a\\b/ddrun", "/a!b/ddrun", "/a(1)/ddrun"}) {
    CHECK(remote_command("id", path, 1, 90s).find("b/ddrun\"") == std::string::npos);
    CHECK(remote_command("id", path, 1, 90s).find("for _p in ddrun;") != std::string::npos);
  }
}

TEST_CASE("The build has a name that a shell leaves alone") {
  const std::string id = build_id("1.2.3", "abc+changes and more");
  CHECK(id.substr(0, 6) == "1.2.3-");
  CHECK(id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-") == std::string::npos);
  CHECK(build_id("1.2.3", "abc") != build_id("1.2.4", "abc"));
}
